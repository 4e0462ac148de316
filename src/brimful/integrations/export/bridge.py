"""Packed Parquet of Megatron-Bridge, which its ``GPTSFTPackedParquetDataset`` reads.

Bridge shifts labels itself: a segment's last token is not an input and its first not a label. Its ``loss_mask`` is of
labels: entry i says whether token i + 1 of the segment is a target. So it is written one to the left of ours, and the
last entry of each segment is 0. A row of Bridge has one token less for each segment than the pack.
"""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from brimful.base.blobs import BlobStore
from brimful.base.typing import LossMask
from brimful.errors import CorruptFileError
from brimful.integrations.export.export_layout import ExportPlan, Layout, ReadPack, Shard, ShardOutcome
from brimful.integrations.export.parquet_rows import write_parquet
from brimful.store.shards import Pack

METADATA = "packing_metadata.json"
"""File with the extremes of all packs, which Bridge uses to pad ``cu_seqlens`` for CUDA graphs."""


class BridgeLayout(Layout):
    """Parquet with ``input_ids``, ``seq_start_id`` and ``loss_mask``; also ``sample_ids`` and ``starts``."""

    name = "bridge"
    summary = "Megatron-Bridge: packed Parquet (input_ids, seq_start_id, loss_mask)"
    reader: ClassVar[tuple[str, str]] = ("pyarrow.parquet", "pyarrow")

    def write_shard(self, shard: Shard) -> ShardOutcome:
        import pyarrow as pa

        schema = pa.schema(
            [
                ("input_ids", pa.list_(pa.int32())),
                ("seq_start_id", pa.list_(pa.int32())),
                ("loss_mask", pa.list_(pa.int8())),
                ("sample_ids", pa.list_(pa.int64())),
                ("starts", pa.list_(pa.int32())),
            ]
        )
        packs: list[tuple[int, int, int]] = []

        def row(index: int, pack: Pack) -> dict[str, Any]:
            # A segment has one input fewer than tokens.
            longest = int(np.diff(pack.cu_seqlens).max()) - 1
            packs.append((longest, pack.num_segments, len(pack)))
            return {
                "input_ids": pack.input_ids,
                "seq_start_id": pack.cu_seqlens[:-1],
                "loss_mask": mask_of_labels(pack.loss_mask).astype(np.int8),
                "sample_ids": pack.sample_ids,
                "starts": pack.starts,
            }

        files = write_parquet(shard, _name(shard.number), schema, row)
        segments, counts, tokens = zip(*packs, strict=True)
        facts = {
            "longest_segment": max(segments),
            "most_segments": max(counts),
            "longest_pack": max(tokens),
            "shortest_pack": min(size - count for _, count, size in packs),
        }
        return shard.outcome(files, facts)

    def finish(self, outcomes: Sequence[ShardOutcome], plan: ExportPlan, store: BlobStore) -> list[str]:
        num_packs, num_segments = plan.num_packs, sum(outcome.segments for outcome in outcomes)
        inputs = sum(outcome.tokens for outcome in outcomes) - num_segments
        capacity = plan.capacity or max(outcome.facts["longest_pack"] for outcome in outcomes)
        facts = {
            "dataset_max_seqlen": max(outcome.facts["longest_segment"] for outcome in outcomes),
            "max_samples_per_bin": max(outcome.facts["most_segments"] for outcome in outcomes),
            "packing_factor": round(num_segments / num_packs, 2),
            "packing_efficiency": round(100 * inputs / num_packs / capacity, 2),
            "pack_size": capacity,
            "min_packed_seqlen": min(outcome.facts["shortest_pack"] for outcome in outcomes),
        }
        store.put_atomic(METADATA, json.dumps([facts], indent=2).encode() + b"\n")
        return [METADATA]

    def advice(self, directory: str) -> str:
        return f"packed_train_data_path={directory + '/*.idx.parquet'!r}, packed_metadata_path={f'{directory}/{METADATA}'!r}"

    def read(self, directory: str, outcomes: Sequence[ShardOutcome]) -> Iterator[ReadPack]:
        import pyarrow.parquet as pq

        for shard in range(len(outcomes)):
            path = Path(directory) / _name(shard)
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                for row in file.read_row_group(group).to_pylist():
                    edges = [*row["seq_start_id"], len(row["input_ids"])]
                    if edges[0] != 0 or len(row["loss_mask"]) != edges[-1]:
                        raise CorruptFileError(f"{path}: a row breaks the rules of Megatron-Bridge")
                    mask = np.array(row["loss_mask"], dtype=bool)
                    mask = np.concatenate([[False], mask[:-1]]) if len(mask) else mask
                    yield ReadPack(row["input_ids"], mask.tolist(), edges, row["sample_ids"], row["starts"])


def mask_of_labels(loss_mask: LossMask) -> LossMask:
    """Return the mask of labels: entry i belongs to token i + 1; the first of a segment is never a target.

    >>> mask_of_labels(np.array([False, True, True, False, True])).astype(int).tolist()
    [1, 1, 0, 1, 0]
    """
    shifted_mask = np.zeros_like(loss_mask)
    shifted_mask[:-1] = loss_mask[1:]
    return shifted_mask


def _name(shard: int) -> str:
    return f"packs-{shard:06d}.idx.parquet"
