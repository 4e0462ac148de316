"""Parquet files that ``datasets`` opens, with the columns that TRL reads of packed data."""

import json
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np

from brimful.base.ragged import offsets_of
from brimful.base.typing import IGNORE_INDEX
from brimful.integrations.export.export_layout import Layout, ReadPack, Shard, ShardOutcome
from brimful.integrations.export.medium_bytes import place_as_json, read_medium
from brimful.integrations.export.parquet_rows import write_parquet
from brimful.store.shards import Pack


class HuggingFaceLayout(Layout):
    """A directory for ``datasets.load_dataset(directory)``.

    ===============  ========================================================================
    ``input_ids``    list<int32>
    ``labels``       list<int32>: the token if it is a target, else -100; not shifted
    ``seq_lengths``  list<int32>: tokens of each segment; TRL makes positions of them
    ``sample_ids``   list<int64>
    ``starts``       list<int32>
    ``media``        JSON: place and ``part`` of each medium, its index in ``media_bytes``
    ``media_bytes``  list<large_binary>: equal bytes once
    ===============  ========================================================================
    """

    name = "huggingface"
    summary = "datasets and TRL: a directory of Parquet with input_ids, labels, seq_lengths, and media"
    takes_media = True
    reader: ClassVar[tuple[str, str]] = ("datasets", "datasets")

    def write_shard(self, shard: Shard) -> ShardOutcome:
        import pyarrow as pa

        schema = pa.schema(
            [
                ("input_ids", pa.list_(pa.int32())),
                ("labels", pa.list_(pa.int32())),
                ("seq_lengths", pa.list_(pa.int32())),
                ("sample_ids", pa.list_(pa.int64())),
                ("starts", pa.list_(pa.int32())),
                ("media", pa.string()),
                ("media_bytes", pa.list_(pa.large_binary())),
            ]
        )
        # Named like a split's files on the hub, so that `datasets` finds them.
        key = f"data/train-{shard.number:05d}-of-{shard.plan.num_shards:05d}.parquet"
        return shard.outcome(write_parquet(shard, key, schema, _row))

    def advice(self, directory: str) -> str:
        return f"datasets.load_dataset({directory!r}, split='train')"

    def read(self, directory: str, outcomes: Sequence[ShardOutcome]) -> Iterator[ReadPack]:
        import datasets

        # Streamed: a copy in the cache would double the disk space.
        for row in datasets.load_dataset(directory, split="train", streaming=True):
            lengths = row["seq_lengths"]
            yield ReadPack(
                input_ids=row["input_ids"],
                loss_mask=[label != IGNORE_INDEX for label in row["labels"]],
                cu_seqlens=offsets_of(lengths).tolist(),
                sample_ids=row["sample_ids"],
                starts=row["starts"],
                media=[row["media_bytes"][item["part"]] for item in json.loads(row["media"])],
            )


def _row(index: int, pack: Pack) -> dict[str, Any]:
    numbers: dict[bytes, int] = {}
    media = []
    for item in pack.media:
        content = read_medium(pack, index, item)
        media.append(place_as_json(item, numbers.setdefault(content, len(numbers))))
    return {
        "input_ids": pack.input_ids,
        "labels": pack.labels.astype(np.int32),
        "seq_lengths": np.diff(pack.cu_seqlens),
        "sample_ids": pack.sample_ids,
        "starts": pack.starts,
        "media": json.dumps(media),
        "media_bytes": list(numbers),
    }
