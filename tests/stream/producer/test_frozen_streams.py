"""Streams and stores stay as they are: packs, records and places of media, as one digest each.

Laws say that a stop changes nothing, and that every sample is there: both hold for another stream as well. A change that is
meant changes the digest with it. File names, hashes and bytes take no part: they depend on how Arrow writes a file.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest

from brimful import open_packs, pack_dataset
from brimful.base.blobs import open_blob_store
from brimful.plan import PlanSettings
from brimful.sources import open_source
from brimful.store.shards import StreamLog
from brimful.stream import PackingProducer
from tests.store.pictures import PictureEncoder, chat, picture, write_pictures
from tests.stream.producer.streams import HandClock, producer, texts

_PASSING = frozenset(("file", "xxh3_128", "bytes", "batches", "producer_id", "root"))


def _without_names(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_names(inner) for key, inner in value.items() if key not in _PASSING}
    return [_without_names(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def digest_of(directory: Any, more: Any = None) -> str:
    """Digest of everything in a store that is decided here."""
    records, end = StreamLog(open_blob_store(directory)).records()
    content: list[Any] = [_without_names(asdict(record)) for record in records]
    content += [None if end is None else asdict(end), more]
    for pack in open_packs(directory) if end is not None else ():
        content.append([pack.input_ids.tolist(), pack.labels.tolist(), pack.sample_ids.tolist(), pack.starts.tolist()])
        for item in pack.attachments:
            medium = item.medium
            place = [medium.name, medium.offset, medium.size, medium.container is None, item.fingerprint]
            content.append([item.segment, item.start, item.length, item.num_tokens, item.num_patches, *place])
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()[:16]


LENGTHS = np.random.default_rng(0).integers(1, 11, 60).tolist()
KEEP = {"no_target": "keep"}
STREAMS: dict[str, tuple[dict[str, Any], str]] = {
    "window": (KEEP, "050dfe155a3d2b4d"),
    "small window": (
        {"lookahead": 2, "max_wait": 1, "packs_per_shard": 3, "min_fill": 0.8, **KEEP},
        "fa19a8e6bbd3dc04",
    ),
    "split": ({"capacity": 7, "overflow": "split", **KEEP}, "1a5f38c6443915b6"),
    "cut": ({"capacity": 6, "overflow": "truncate", "no_target": "drop"}, "20f26c7bdde65223"),
    "dropped": ({"capacity": 8, "overflow": "drop", "no_target": "drop"}, "850e834cc7285668"),
    "lanes": ({"lanes": 3, "packs_per_shard": 4, **KEEP}, "c4d00c3b96fb3c64"),
}


@pytest.mark.parametrize("name", STREAMS)
def test_a_stream_is_what_it_was(tmp_path, name):
    settings, expected = STREAMS[name]
    seen: list[Any] = []
    one = producer(texts(LENGTHS), tmp_path, on_shard=lambda statistics: seen.append(statistics.as_dict()), **settings)
    statistics = one.close()
    assert digest_of(tmp_path, [seen, statistics.as_dict(), str(statistics)]) == expected


def test_a_stream_that_is_emptied_by_its_age_is_what_it_was(tmp_path):
    """Three lanes, a sample every second, and all leave after five of them."""
    clock = HandClock()
    rows = texts(LENGTHS)

    def arriving():
        for row in rows:
            clock.sleep(1.0)
            yield row

    one = producer(arriving(), tmp_path, clock=clock, max_age=5.0, lanes=3, lookahead=64, **KEEP)
    due = []
    while one.step(close=True):
        due.append(one.seconds_to_shard)
        clock.sleep(0.5)
    assert digest_of(tmp_path, [due, one.counts]) == "a40958c3e05c70a9"


ROWS = [
    chat("ab" * (number % 4), *[f"p{number % 5}.png"] * (number % 3 > 0), *([picture(20)] * (number % 4 == 0)))
    for number in range(24)
]


@pytest.mark.parametrize(("overflow", "expected"), [("error", "adee865808af8039"), ("split", "9e8d88101ba35a72")])
def test_a_stream_of_media_is_what_it_was(tmp_path, overflow, expected):
    write_pictures(tmp_path / "in", range(5))
    options: dict[str, Any] = {"capacity": 64, "lookahead": 6, "packs_per_shard": 2, "overflow": overflow}
    one = PackingProducer(iter(ROWS), PictureEncoder(), tmp_path / "out", media_dir=tmp_path / "in", **options)
    one.close()
    assert digest_of(tmp_path / "out") == expected


@pytest.mark.parametrize(("storage", "expected"), [("references", "356a6e230b2c4253"), ("bytes", "49c7a9e205a055c2")])
def test_a_store_of_media_is_what_it_was(tmp_path, storage, expected):
    write_pictures(tmp_path / "in", range(5))
    source = open_source(ROWS, media=True, media_dir=tmp_path / "in")
    summary = pack_dataset(
        source, PictureEncoder(), tmp_path / "out", PlanSettings(capacity=64), shard_bytes=4 * 64 * 2,
        media_storage=storage, num_proc=1,
    )  # fmt: skip
    account = {name: value for name, value in summary.as_dict().items() if name not in ("directory", "seconds")}
    assert digest_of(tmp_path / "out", _without_names(account)) == expected
