"""Helpers of the tests of producers: streams by their packs, a clock by hand, and small rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from brimful.base.blobs import open_blob_store
from brimful.store.shards import EndRecord, ShardReader, ShardRecord, StreamLog
from brimful.stream.producer import PackingProducer
from brimful.stream.producer.back_pressure import Clock
from brimful.testing.toys import toy_chat_encoder

SETTINGS: dict[str, Any] = {"capacity": 10, "lookahead": 4, "packs_per_shard": 2}


class HandClock(Clock):
    """Time that goes on during waits."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def now(self) -> float:
        return self.seconds

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds


def producer(source: Any, stream: Any, **settings: Any) -> PackingProducer:
    """A producer with one token a character."""
    return PackingProducer(source, toy_chat_encoder(), stream, **{**SETTINGS, **settings})


def texts(lengths: list[int]) -> list[dict[str, str]]:
    """Rows of texts with given numbers of characters, each of its own letter."""
    return [{"text": chr(97 + index % 26) * length} for index, length in enumerate(lengths)]


def append(path: Path, rows: list[Any]) -> None:
    with open(path, "a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def source_of(folder: Path, rows: list[Any]) -> tuple[Path, Path]:
    """A directory with one growing file of rows, and where its stream goes."""
    source = folder / "in"
    source.mkdir(parents=True)
    append(source / "a.jsonl", rows)
    return source, folder / "out"


def drain(one: PackingProducer) -> None:
    """Let a producer take all that has come, and write what is due."""
    while one.step():
        pass


def records_of(stream: Any) -> tuple[list[ShardRecord], EndRecord | None]:
    return StreamLog(open_blob_store(stream)).records()


def shards_of(stream: Any) -> list[list[list[int]]]:
    """Sample ids of each pack of each shard."""
    shards = []
    for record in records_of(stream)[0]:
        reader = ShardReader(str(Path(stream) / record.file), size=record.bytes)
        shards.append([reader.pack(row).sample_ids.tolist() for row in range(record.packs)])
    return shards


def samples_of(stream: Any) -> list[int]:
    """Every sample id, in the order of the stream."""
    return [sample for shard in shards_of(stream) for pack in shard for sample in pack]


def hashes_of(stream: Any) -> list[str]:
    """Hashes of all shards."""
    return [record.xxh3_128 for record in records_of(stream)[0]]
