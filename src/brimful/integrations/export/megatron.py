"""Indexed data set of Megatron-Core: tokens in ``packs.bin``, their offsets in ``packs.idx``.

One sequence is one segment, and one document is one pack: ``document_indices`` are the boundaries
of packs, and ``sequence_lengths`` are the lengths of segments, so that nothing of a plan is lost.
The format has no place for target
masks: ``packs_loss_mask.bin`` and ``.idx`` hold them, as a data set of ``uint8`` of the same shape.
"""

import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any

import numpy as np

from brimful.base.blobs import BlobStore
from brimful.base.ragged import offsets_of
from brimful.integrations.export.export_layout import (
    ExportPlan,
    Layout,
    ReadPack,
    Shard,
    ShardOutcome,
    chunks_of_file,
    write_blob,
)

_FOLDER = ".brimful/parts"
"""Folder of the parts of each shard, which become one file at the end."""

_CODES = {"uint8": 1, "int32": 4}
"""Numbers of types in the header of an index."""

FILES = {"packs": "int32", "packs_loss_mask": "uint8"}
"""Data sets of an export, and the type of their values."""

_NAMES = (*FILES, "lengths", "segments")
"""Parts of a shard."""


class MegatronLayout(Layout):
    """``IndexedDataset`` of Megatron-Core, and a second one with the loss mask."""

    name = "megatron"
    joins_shards = True
    reader = ("megatron.core.datasets.indexed_dataset", "megatron-core")

    def write_shard(self, shard: Shard) -> ShardOutcome:
        store, keys = shard.store, {name: _key(name, shard.index) for name in _NAMES}
        lengths, num_segments = [], []
        with store.blob(keys["packs"]) as tokens, store.blob(keys["packs_loss_mask"]) as masks:
            for _, pack in shard:
                tokens.write(np.ascontiguousarray(pack.input_ids, dtype="<i4").data)
                masks.write(pack.loss_mask.astype(np.uint8).data)
                lengths.append(np.diff(pack.cu_seqlens))
                num_segments.append(pack.num_segments)
            tokens.publish(keys["packs"])
            masks.publish(keys["packs_loss_mask"])
        sizes = {"packs": tokens.size, "packs_loss_mask": masks.size}
        arrays = {"lengths": np.concatenate(lengths), "segments": np.array(num_segments)}
        for name, values in arrays.items():
            sizes[name] = write_blob(store, keys[name], [values.astype("<i4").tobytes()])
        return shard.outcome({keys[name]: size for name, size in sizes.items()})

    def finish(
        self, outcomes: Sequence[ShardOutcome], plan: ExportPlan, store: BlobStore
    ) -> list[str]:
        files = []
        for name, dtype in FILES.items():
            keys = [_key(name, shard) for shard in range(len(outcomes))]
            values = (
                [store.get(key)]
                if (path := store.local_path(key)) is None
                else chunks_of_file(path)
                for key in keys
            )
            write_blob(store, f"{name}.bin", chain.from_iterable(values))
            write_blob(store, f"{name}.idx", _index(outcomes, store, dtype))
            files += [f"{name}.bin", f"{name}.idx"]
        return files

    def clear(self, outcomes: Sequence[ShardOutcome], store: BlobStore) -> None:
        for outcome in outcomes:
            for key in outcome.files:
                store.delete(key)

    def advice(self, directory: str) -> str:
        return (
            f"IndexedDataset({directory + '/packs'!r}): get_document_idx() are packs, "
            "sequence_lengths segments"
        )

    def read(self, directory: str, num_shards: int) -> Iterator[ReadPack]:
        from megatron.core.datasets.indexed_dataset import IndexedDataset

        tokens, masks = (
            IndexedDataset(f"{directory}/packs"),
            IndexedDataset(f"{directory}/packs_loss_mask"),
        )
        edges = tokens.document_indices
        for start, end in zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True):
            segments = tokens[start:end]
            yield ReadPack(
                input_ids=np.concatenate(segments).tolist(),
                loss_mask=np.concatenate(masks[start:end]).astype(bool).tolist(),
                cu_seqlens=offsets_of([len(segment) for segment in segments]).tolist(),
            )


def header(dtype: str, num_sequences: int, num_documents: int) -> bytes:
    """Return the first 34 bytes of an index.

    Args:
        dtype: type of the values.
        num_sequences: that follow: their lengths (``int32``), then their first bytes (``int64``).
        num_documents: after the sequences, the first sequence of each and the end
            (``int64[num_documents + 1]``).

    >>> len(header("int32", 3, 2)), header("int32", 3, 2)[:9]
    (34, b'MMIDIDX\\x00\\x00')
    """
    return b"MMIDIDX\x00\x00" + struct.pack(
        "<QBQQ", 1, _CODES[dtype], num_sequences, num_documents + 1
    )


def _index(outcomes: Sequence[ShardOutcome], store: BlobStore, dtype: str) -> Iterator[bytes]:
    """Yield an index in pieces of one shard each, so that it is never in memory."""
    shards = range(len(outcomes))
    yield header(
        dtype,
        sum(outcome.segments for outcome in outcomes),
        sum(outcome.packs for outcome in outcomes),
    )
    for shard in shards:
        yield store.get(_key("lengths", shard))
    first_byte, size = 0, np.dtype(dtype).itemsize
    for shard in shards:
        offsets = offsets_of(_int_array("lengths", shard, store)) * size
        yield (first_byte + offsets[:-1]).astype("<i8").tobytes()
        first_byte += int(offsets[-1])
    first_segment = 0
    for shard in shards:
        offsets = offsets_of(_int_array("segments", shard, store))
        yield (first_segment + offsets[:-1]).astype("<i8").tobytes()
        first_segment += int(offsets[-1])
    yield struct.pack("<q", first_segment)


def _int_array(name: str, shard: int, store: BlobStore) -> Any:
    return np.frombuffer(store.get(_key(name, shard)), dtype="<i4")


def _key(name: str, shard: int) -> str:
    return f"{_FOLDER}/{name}-{shard:08d}"
