"""Packs as rows: a data set of ``datasets``, packed Parquet of Megatron-Bridge, and JSON lines of
ms-swift.
"""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from brimful.base.blobs import BlobStore
from brimful.base.ragged import offsets_of, ranges
from brimful.base.typing import IGNORE_INDEX, Int64Array, LossMask
from brimful.errors import CorruptFileError
from brimful.integrations.export.export_layout import (
    ExportPlan,
    Layout,
    ReadPack,
    Shard,
    ShardOutcome,
    location_as_json,
    read_medium,
    write_blob,
)
from brimful.store.shards import Pack

_GROUP_ROWS = 64
"""Packs of a row group, or of a batch of Arrow: readers of Parquet fetch a whole group for one of
its rows, so it should be a few megabytes.
"""


_SEGMENT_COLUMNS = {"sample_ids": "int64", "starts": "int32"}
"""Columns of every layout of rows: the sample of each segment, and its first token in it."""


def _write_tables(
    shard: Shard,
    key: str,
    type_names: Mapping[str, str],
    row: Callable[[int, Pack], dict[str, Any]],
    open_writer: Callable[[Any, Any], Any],
) -> dict[str, int]:
    """Write one file of Arrow tables with a row for each pack; return its size.

    Args:
        shard: to write.
        key: of the file.
        type_names: Arrow's name of the type of each column; all but ``string`` are of the elements of
            lists.
        row: function from index and pack to a value for each column.
        open_writer: function from a file and the schema to a writer of tables.
    """
    import pyarrow as pa

    types = {name: pa.type_for_alias(arrow_type) for name, arrow_type in type_names.items()}
    schema = pa.schema(
        {
            name: arrow_type if arrow_type == pa.string() else pa.list_(arrow_type)
            for name, arrow_type in types.items()
        }
    )
    with shard.store.blob(key) as blob:
        sink = pa.PythonFile(blob, mode="w")
        with closing(open_writer(sink, schema)) as writer:
            packs = iter(shard)
            while group := list(islice(packs, _GROUP_ROWS)):
                rows = [row(index, pack) for index, pack in group]
                columns = [
                    _column([each[item.name] for each in rows], item.type) for item in schema
                ]
                writer.write_table(pa.Table.from_arrays(columns, schema=schema))
        blob.publish(key)
    return {key: blob.size}


def _column(values: list[Any], arrow_type: Any) -> Any:
    """Return a column of Arrow; lists of numbers are joined, and not converted one by one."""
    import pyarrow as pa

    if not (pa.types.is_list(arrow_type) and pa.types.is_integer(arrow_type.value_type)):
        return pa.array(values, arrow_type)
    values_ = np.concatenate(values).astype(arrow_type.value_type.to_pandas_dtype(), copy=False)
    return pa.ListArray.from_arrays(
        offsets_of([len(each) for each in values]).astype(np.int32), pa.array(values_)
    )


SPLIT = "train"
"""Name of the split, and the folder of its files."""

_README = f"""\
---
configs:
- config_name: default
  data_files:
  - split: {SPLIT}
    path: {SPLIT}/*.arrow
---
"""
"""Contents of ``README.md``, by which ``load_dataset`` finds the split."""


class HuggingFaceLayout(Layout):
    """A directory for ``load_from_disk`` and ``load_dataset`` of ``datasets``: a ``DatasetDict``
    with one split, of Arrow files that are mapped and not copied.

    ================  ========================================================================
    ``input_ids``     list<int32>
    ``labels``        list<int32>: the token if it is a target, else -100; not shifted
    ``position_ids``  list<int32>, from 0 in each segment: models of Transformers keep samples
                      apart by them, in batches of one row without an ``attention_mask``
    ``seq_lengths``   list<int32>: tokens of each segment; TRL makes positions of them
    ``sample_ids``    list<int64>
    ``starts``        list<int32>
    ``media``         JSON: place and ``part`` of each medium, its index in ``media_bytes``
    ``media_bytes``   list<large_binary>: equal bytes once
    ================  ========================================================================
    """

    name = "huggingface"
    takes_media = True
    reader = ("datasets", "datasets")

    def write_shard(self, shard: Shard) -> ShardOutcome:
        import pyarrow as pa

        type_names = {
            **dict.fromkeys(("input_ids", "labels", "position_ids", "seq_lengths"), "int32"),
            **_SEGMENT_COLUMNS,
            "media": "string",
            "media_bytes": "large_binary",
        }
        key = f"{SPLIT}/{_data_file(shard.index, shard.plan)}"
        return shard.outcome(
            _write_tables(shard, key, type_names, _row_of_datasets, pa.ipc.new_stream)
        )

    def finish(
        self, outcomes: Sequence[ShardOutcome], plan: ExportPlan, store: BlobStore
    ) -> list[str]:
        # What `save_to_disk` writes; the types of columns are in the Arrow files.
        state: dict[str, Any] = {
            "_data_files": [
                {"filename": _data_file(shard, plan)} for shard in range(plan.num_shards)
            ],
            "_fingerprint": plan.fingerprint[:16],
            "_format_columns": None,
            "_format_kwargs": {},
            "_format_type": None,
            "_output_all_columns": False,
            "_split": SPLIT,
        }
        files = {
            "dataset_dict.json": json.dumps({"splits": [SPLIT]}),
            f"{SPLIT}/dataset_info.json": "{}",
            f"{SPLIT}/state.json": json.dumps(state, indent=2),
            "README.md": _README,
        }
        for key, text in files.items():
            store.put_atomic(key, text.encode())
        return list(files)

    def advice(self, directory: str) -> str:
        return f"datasets.load_from_disk({f'{directory}/{SPLIT}'!r})"

    def read(self, directory: str, num_shards: int) -> Iterator[ReadPack]:
        import datasets

        for row in datasets.load_from_disk(directory)[SPLIT]:
            media = [row["media_bytes"][item["part"]] for item in json.loads(row["media"])]
            yield _read_row(row, row["seq_lengths"], media)


def _data_file(shard: int, plan: ExportPlan) -> str:
    return f"data-{shard:05d}-of-{plan.num_shards:05d}.arrow"


def _read_row(
    row: dict[str, Any], lengths: list[int], media: list[bytes] | None = None
) -> ReadPack:
    if row["position_ids"] != _positions(lengths).tolist():
        raise CorruptFileError(f"sample {row['sample_ids'][0]}: positions do not follow segments")
    mask = [label != IGNORE_INDEX for label in row["labels"]]
    return ReadPack(
        row["input_ids"],
        mask,
        offsets_of(lengths).tolist(),
        row["sample_ids"],
        row["starts"],
        media=media,
    )


def _positions(lengths: Sequence[int] | Int64Array) -> Int64Array:
    lengths = np.asarray(lengths)
    return ranges(np.zeros_like(lengths), lengths)


def _row_of_datasets(index: int, pack: Pack) -> dict[str, Any]:
    indices: dict[bytes, int] = {}
    media = []
    for item in pack.attachments:
        content = read_medium(pack, index, item)
        media.append(location_as_json(item, indices.setdefault(content, len(indices))))
    lengths = np.diff(pack.cu_seqlens)
    return {
        "input_ids": pack.input_ids,
        "labels": pack.labels.astype(np.int32),
        "position_ids": _positions(lengths),
        "seq_lengths": lengths,
        "sample_ids": pack.sample_ids,
        "starts": pack.starts,
        "media": json.dumps(media),
        "media_bytes": list(indices),
    }


METADATA = "packing_metadata.json"
"""File with the extremes of all packs, which Bridge uses to pad ``cu_seqlens`` for CUDA graphs."""


class BridgeLayout(Layout):
    """Parquet with ``input_ids``, ``seq_start_id`` and ``loss_mask``; also ``sample_ids`` and
    ``starts``.

    Bridge, whose ``GPTSFTPackedParquetDataset`` reads it, shifts labels itself: a segment's last
    token is not an input and its first not a label. Its ``loss_mask`` is of labels: entry i says
    whether token i + 1 of the segment is a target. So it is written one to the left of ours, and
    the last entry of each segment is 0. A row of Bridge has one token less for each segment than
    the pack.
    """

    name = "bridge"
    reader = ("pyarrow.parquet", "pyarrow")

    def write_shard(self, shard: Shard) -> ShardOutcome:
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

        type_names = {
            "input_ids": "int32",
            "seq_start_id": "int32",
            "loss_mask": "int8",
            **_SEGMENT_COLUMNS,
        }
        key = f"packs-{shard.index:06d}.idx.parquet"
        files = _write_tables(shard, key, type_names, row, _parquet_writer)
        segments, counts, tokens = zip(*packs, strict=True)
        facts = {
            "longest_segment": max(segments),
            "most_segments": max(counts),
            "longest_pack": max(tokens),
            "shortest_pack": min(size - count for _, count, size in packs),
        }
        return shard.outcome(files, facts)

    def finish(
        self, outcomes: Sequence[ShardOutcome], plan: ExportPlan, store: BlobStore
    ) -> list[str]:
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
        return (
            f"packed_train_data_path={directory + '/*.idx.parquet'!r}, "
            f"packed_metadata_path={f'{directory}/{METADATA}'!r}"
        )

    def read(self, directory: str, num_shards: int) -> Iterator[ReadPack]:
        import pyarrow.parquet as pq

        for shard in range(num_shards):
            path = Path(directory) / f"packs-{shard:06d}.idx.parquet"
            file = pq.ParquetFile(path)
            for group in range(file.num_row_groups):
                for row in file.read_row_group(group).to_pylist():
                    edges = [*row["seq_start_id"], len(row["input_ids"])]
                    if edges[0] != 0 or len(row["loss_mask"]) != edges[-1]:
                        raise CorruptFileError(f"{path}: a row breaks the rules of Megatron-Bridge")
                    mask = np.array(row["loss_mask"], dtype=bool)
                    mask = np.concatenate([[False], mask[:-1]])
                    yield ReadPack(
                        row["input_ids"], mask.tolist(), edges, row["sample_ids"], row["starts"]
                    )


def _parquet_writer(sink: Any, schema: Any) -> Any:
    import pyarrow.parquet as pq

    return pq.ParquetWriter(sink, schema, compression="zstd")


def mask_of_labels(loss_mask: LossMask) -> LossMask:
    """Return the mask of labels: entry i belongs to token i + 1; the first of a segment is never a
    target.

    >>> mask_of_labels(np.array([False, True, True, False, True])).astype(int).tolist()
    [1, 1, 0, 1, 0]
    """
    shifted_mask = np.zeros_like(loss_mask)
    shifted_mask[:-1] = loss_mask[1:]
    return shifted_mask


class JsonLinesLayout(Layout):
    """One object a line, ``packs_per_shard`` lines a chunk.

    ``input_ids``, ``labels`` (-100 if not a target, not shifted), ``position_ids`` (from 0 in each
    segment), ``lengths`` of segments, ``pack_length``, ``num_samples``; and ``sample_ids`` and
    ``starts``.
    """

    name = "jsonl"
    reader = ("json", "json")

    def write_shard(self, shard: Shard) -> ShardOutcome:
        lines = (
            json.dumps(_row_of_json(pack), separators=(",", ":")).encode() + b"\n"
            for _, pack in shard
        )
        key = f"chunk_{shard.index:05d}.jsonl"
        return shard.outcome({key: write_blob(shard.store, key, lines)})

    def advice(self, directory: str) -> str:
        return (
            f"dataset {directory}, sharded_lazy and sharded_lazy_pre_packed, of ms-swift's "
            "sharded loader"
        )

    def read(self, directory: str, num_shards: int) -> Iterator[ReadPack]:
        for shard in range(num_shards):
            with open(Path(directory) / f"chunk_{shard:05d}.jsonl", "rb") as file:
                for line in file:
                    row = json.loads(line)
                    yield _read_row(row, row["lengths"])


def _row_of_json(pack: Pack) -> dict[str, Any]:
    lengths = np.diff(pack.cu_seqlens)
    return {
        "input_ids": pack.input_ids.tolist(),
        "labels": pack.labels.tolist(),
        "position_ids": _positions(lengths).tolist(),
        "lengths": lengths.tolist(),
        "pack_length": len(pack),
        "num_samples": pack.num_segments,
        "sample_ids": pack.sample_ids.tolist(),
        "starts": pack.starts.tolist(),
    }
