"""Packed rows as JSON lines, in numbered chunks: the rows that ms-swift's lazy loader of packed data reads."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.typing import IGNORE_INDEX
from brimful.integrations.export.export_layout import Layout, ReadPack, Shard, ShardOutcome, write_blob
from brimful.store.shards import Pack


class JsonLinesLayout(Layout):
    """One object a line, ``packs_per_shard`` lines a chunk.

    ``input_ids``, ``labels`` (-100 if not a target, not shifted), ``position_ids`` (from 0 in each segment),
    ``lengths`` of segments, ``pack_length``, ``num_samples``; and ``sample_ids`` and ``starts``.
    """

    name = "jsonl"
    summary = "JSON lines of packed rows in chunk_00000.jsonl, …"
    reader: ClassVar[tuple[str, str]] = ("json", "json")

    def write_shard(self, shard: Shard) -> ShardOutcome:
        lines = (json.dumps(_row(pack), separators=(",", ":")).encode() + b"\n" for _, pack in shard)
        key = _name(shard.number)
        return shard.outcome({key: write_blob(shard.store, key, lines)})

    def advice(self, directory: str) -> str:
        return f"dataset {directory}, sharded_lazy and sharded_lazy_pre_packed, of ms-swift's sharded loader"

    def read(self, directory: str, outcomes: Sequence[ShardOutcome]) -> Iterator[ReadPack]:
        for shard in range(len(outcomes)):
            with open(Path(directory) / _name(shard), "rb") as file:
                for line in file:
                    row = json.loads(line)
                    yield ReadPack(
                        input_ids=row["input_ids"],
                        loss_mask=[label != IGNORE_INDEX for label in row["labels"]],
                        cu_seqlens=offsets_of(row["lengths"]).tolist(),
                        sample_ids=row["sample_ids"],
                        starts=row["starts"],
                    )


def _row(pack: Pack) -> dict[str, Any]:
    lengths = np.diff(pack.cu_seqlens)
    return {
        "input_ids": pack.input_ids.tolist(),
        "labels": pack.labels.tolist(),
        "position_ids": (np.arange(len(pack)) - np.repeat(pack.cu_seqlens[:-1], lengths)).tolist(),
        "lengths": lengths.tolist(),
        "pack_length": len(pack),
        "num_samples": pack.num_segments,
        "sample_ids": pack.sample_ids.tolist(),
        "starts": pack.starts.tolist(),
    }


def _name(shard: int) -> str:
    return f"chunk_{shard:05d}.jsonl"
