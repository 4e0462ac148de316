"""Census of media: each is counted as often as it is packed, and once as a content."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.shards import MediaCensus, media_census
from brimful.testing.toys import toy_pack


def placed(name: str, content: bytes, tokens: int, kind: MediaKind = MediaKind.IMAGE) -> PlacedMedium:
    medium = Medium(kind, name, data=content)
    return PlacedMedium(medium, 0, tokens, tokens, num_patches=4 * tokens, fingerprint=medium.fingerprint())


def test_media_are_counted_by_kind_and_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it five captions of one picture are five pictures, or one."""
    monkeypatch.setattr(media_census, "_BUFFER", 2)  # the counts go through the array, too
    packs = [
        replace(toy_pack([9]), media=(placed("a", b"1", 3), placed("b", b"2", 7), placed("c", b"3", 2))),
        replace(toy_pack([9]), media=(placed("d", b"1", 3), placed("s", b"1", 5, MediaKind.AUDIO))),
        toy_pack([9]),
    ]
    census = MediaCensus.of(packs)
    assert list(census.kinds) == ["image", "audio"]
    pictures = census.kinds["image"]
    assert (pictures.number, pictures.distinct, pictures.tokens, pictures.patches) == (4, 3, 15, 60)
    assert (pictures.largest, pictures.largest_sample, pictures.largest_tokens) == ("b", 0, 7)
    assert MediaCensus.from_dict(json.loads(json.dumps(census.as_dict()))) == census


def test_packs_of_text_have_no_line() -> None:
    """Without it every summary of texts speaks of media."""
    assert MediaCensus.of([toy_pack([3])]).lines() == []


def test_a_name_that_is_no_unicode_can_be_written() -> None:
    """Without it a file name in Latin-1 ends the job at its summary."""
    census = MediaCensus.of([replace(toy_pack([9]), media=(placed("\udce9", b"", 3),))])
    assert "\\udce9" in "\n".join(census.lines())
    "\n".join(census.lines()).encode()
