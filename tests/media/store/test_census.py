"""Census of media: each is counted as often as it is packed, and once as a content; the log is all that is read."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.media.store import KindCount, LargestMedium, MediaCensus
from brimful.store.shards import ShardRecord


def placed(name: str, tokens: int, kind: MediaKind = MediaKind.IMAGE) -> PlacedMedium:
    return PlacedMedium(Medium(kind, name, size=10 * tokens), 0, tokens, tokens, num_patches=4 * tokens, num_frames=1)


def counted(*tokens: int) -> KindCount:
    """A shard with media of given numbers of tokens, of sample 100 and the next; every other one is new."""
    counter = KindCount()
    for number, size in enumerate(tokens):
        counter.add(placed(f"p{number}", size), 100 + number, 10 * size, is_first=number % 2 == 0)
    return counter


def record(**items: dict[str, Any]) -> ShardRecord:
    return ShardRecord(0, "shards/0", 1, "", 1, 1, 1, 1, "me", media={"items": items})


def test_a_shard_counts_its_media() -> None:
    """Without it users do not know which picture is too large; of equals it is the first."""
    assert counted(3, 7, 7) == KindCount(3, 170, 2, 17, 68, 3, 0, LargestMedium("p1", 101, 7, 28))


@given(st.lists(st.integers(1, 9), max_size=8), st.integers(0, 8))
def test_shards_sum_to_their_store(tokens: list[int], cut: int) -> None:
    """Law: a shard that is cut in two counts what both of them count; records are JSON between."""
    cut -= cut % 2  # every other medium is new, in both parts
    counter = KindCount()
    for number, size in enumerate(tokens[cut:], cut):
        counter.add(placed(f"p{number}", size), 100 + number, 10 * size, is_first=number % 2 == 0)
    parts = [counted(*tokens[:cut]), counter]
    records = [record(image=json.loads(json.dumps(asdict(part)))) for part in parts]
    assert MediaCensus.of(records).kinds == {"image": counted(*tokens)}


def test_kinds_have_their_order_and_their_lines() -> None:
    """Without it a store of pictures and sounds is shown as one of either."""
    sounds = KindCount(1, 50, 1, 5, mel_frames=500, largest=LargestMedium("s", 9, 5, 0))
    census = MediaCensus.of([record(audio=asdict(sounds), image=asdict(counted(3, 7))), record()])
    assert list(census.kinds) == ["image", "audio"]
    assert census.lines() == [
        "media          2 images (1 distinct), 1 audio clip (1 distinct), 40 patches, 500 columns of spectrograms, 150 bytes",
        "largest        image 'p1' of sample 101: 7 tokens, 28 patches",
        "largest        audio clip 's' of sample 9: 5 tokens",
        "media in       files by absolute paths",
    ]


def test_packs_of_text_have_no_line() -> None:
    """Without it every summary of texts speaks of media."""
    texts = ShardRecord(0, "shards/0", 1, "", 1, 1, 1, 1, "me")
    assert (MediaCensus.of([texts]).lines(), MediaCensus.of([]).kinds) == ([], {})


def test_a_name_that_is_no_unicode_can_be_written() -> None:
    """Without it a file name in Latin-1 ends the job at its summary; nor does a data URL fill the log."""
    counter = KindCount()
    counter.add(placed("\udce9" + 500 * "x", 3), 0, 30, is_first=True)
    census = MediaCensus.of([record(image=asdict(counter))])
    text = "\n".join(census.lines())
    assert "\\udce9" in text
    assert len(text.encode()) < 500
