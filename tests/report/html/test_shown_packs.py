"""Packs as pictures: nothing of the data is markup, the page stays small, and what cannot be read says why."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.report.analysis import shown_packs
from brimful.report.analysis.shown_packs import ShownMedium, show_packs
from brimful.report.html.page import shown_packs_section
from brimful.store.shards import Pack
from brimful.testing.toys import toy_pack, toy_tree
from tests.report.html.test_page import Page

Image = pytest.importorskip("PIL.Image")


def png(width: int, height: int) -> bytes:
    file = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def picture(name: str, content: bytes, start: int = 1, **facts: Any) -> PlacedMedium:
    return PlacedMedium(Medium(MediaKind.IMAGE, name, data=content), start, 4, 4, num_patches=16, **facts)


def shown(pack: Pack, decode: Callable[[Any], str] | None = None) -> list[shown_packs.ShownPack]:
    return show_packs([pack], budgets={"tokens": 16, "patches": 32}, decode=decode)


def media_of(pack: shown_packs.ShownPack) -> Iterator[ShownMedium]:
    return (part for segment in pack.segments for part in segment.items if isinstance(part, ShownMedium))


EVIL = "<script>alert(1)</script>\"'><img src=x onerror=alert(1)>\x1b\x00\udc80\u202e"


def test_no_name_and_no_text_is_markup() -> None:
    """Without it a row of a data set from elsewhere runs in the reader's browser."""
    pack = replace(
        toy_pack([8, 8]), attachments=(picture(EVIL, png(300, 200)), picture(EVIL, b"no picture", 9, segment=1))
    )
    page = shown_packs_section(shown(pack, lambda ids: EVIL))
    page.encode()
    elements = Page(page).elements
    assert {name for name, _ in elements}.isdisjoint({"script", "iframe", "object"})
    images = [attributes for name, attributes in elements if name == "img"]
    assert len(images) == 1
    assert images[0]["src"].startswith("data:image/jpeg;base64,")
    assert not any(attribute.startswith("on") for _, attributes in elements for attribute in attributes)
    assert not re.search("[\x00-\x08\x0b-\x1f]", page)


def test_a_tree_is_indented_below_its_trunk() -> None:
    """Without it a trunk is taken for a part of the first sample that it belongs to."""
    tree = toy_tree([[5, 6, 7], [5, 6, 8], [5, 6]])
    (pack,) = shown(replace(tree, attachments=(picture("a.png", png(30, 20), 0),)))
    assert [(segment.name, segment.level) for segment in pack.segments] == [
        *(("sample 2, trunk of 3 samples", 0), ("sample 0", 1), ("sample 1", 1))
    ]
    chain_of_three = toy_tree([[5, 6], [5, 6, 7], [5, 6, 7, 8]])
    (chain,) = shown(replace(chain_of_three, attachments=(picture("a.png", png(30, 20), 0),)))
    assert [segment.level for segment in chain.segments] == [0, 0, 0]
    page = shown_packs_section([pack])
    assert page.count('style="margin-left:1em"') == 2
    assert "sample 2, trunk of 3 samples · tokens 0 … 1" in page


def test_a_medium_that_cannot_be_read_says_why() -> None:
    """Without it a report ends at the first picture that is gone, which is when users look."""
    items = (
        picture("cut.png", png(300, 200)[:900]),
        picture("other.png", png(30, 20), 5, fingerprint="00"),
        PlacedMedium(Medium(MediaKind.VIDEO, "gone.mp4", path="/nowhere/gone.mp4"), 9, 4, 4, num_frames=2),
    )
    (pack,) = shown(replace(toy_pack([16]), attachments=items))
    cut, other, gone = media_of(pack)
    assert "Pillow cannot read it" in cut.note
    assert other.note == "was changed since it was packed: restore it, or pack the data again"
    assert gone.note == "does not exist, looked for at '/nowhere/gone.mp4'"
    page = shown_packs_section([pack])
    assert all(text in page for text in ("cut.png", "other.png", "gone.mp4", "does not exist"))


def test_a_page_stays_small_whatever_is_packed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a report on packs of many large pictures cannot be mailed."""
    monkeypatch.setattr(shown_packs, "_MEDIA", 3)
    content = png(1200, 900)
    items = tuple(picture(f"{number}.png", content, 4 * number) for number in range(4))
    (pack,) = shown(replace(toy_pack([16]), attachments=items), lambda ids: "x" * 100_000)
    drawn = list(media_of(pack))
    assert [bool(medium.thumbnail) for medium in drawn] == [True, True, True, False]
    assert drawn[3].note == "not drawn: many before"
    sizes = [Image.open(io.BytesIO(medium.thumbnail)).size for medium in drawn if medium.thumbnail]
    assert max(map(max, sizes)) <= 112
    assert all(len(medium.thumbnail) < 16_000 for medium in drawn)  # noise is what JPEG is worst at
    assert len(shown_packs_section([pack])) < 100_000


def test_a_huge_picture_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a picture of 10,000 × 10,000 pixels takes the memory of the machine that draws its thumbnail."""
    monkeypatch.setattr(shown_packs, "_MAX_PIXELS", 100)
    (pack,) = shown(replace(toy_pack([16]), attachments=(picture("a.png", png(20, 20)),)))
    assert next(media_of(pack)).note == "not drawn: it is too large"


def test_sounds_have_a_waveform(media_home: Path) -> None:
    """Without it a silent file looks like any other."""
    (tone,) = [path for path in (media_home / "tones").iterdir() if path.name == "0000.wav"]
    item = PlacedMedium(Medium(MediaKind.AUDIO, "a", path=str(tone)), 1, 4, 4, num_mel_frames=16)
    (pack,) = shown(replace(toy_pack([16]), attachments=(item,)))
    (medium,) = media_of(pack)
    assert (len(medium.peaks), max(medium.peaks)) == (96, 1.0)
    assert medium.facts.size.endswith(" s")
    assert Page(shown_packs_section([pack])).count("svg") == 1


def test_packs_of_text_are_not_shown() -> None:
    """Without it reports of texts load a tokenizer."""
    assert show_packs([toy_pack([3])], budgets={"tokens": 4}, decode=None) == []
