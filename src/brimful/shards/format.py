"""The file of packs: an Arrow IPC file in batches of 64 rows, one row a pack.

===============  ==================  ==========================================================
``input_ids``    list<int32>         tokens
``loss_mask``    binary              one bit a token, lowest bit of a byte first
``lengths``      list<int32>         tokens of each segment
``sample_ids``   list<int64>         sample of each segment
``starts``       list<int32>         first token of the sample in each segment
``checksum``     uint64              XXH3-64 of the row, checked at every read
===============  ==================  ==========================================================

A reader passes over columns that it does not know: media will have one of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash

from brimful.errors import CorruptFileError
from brimful.shards.pack import Pack

__all__ = ["SHARD_VERSION", "ShardReader", "shard_bytes"]

SHARD_VERSION = 1
_BATCH_ROWS = 64
_Array = np.ndarray[Any, np.dtype[Any]]


def _checksum(ids: _Array, bits: _Array, lengths: _Array, sample_ids: _Array, starts: _Array) -> int:
    hasher = xxhash.xxh3_64(ids.data)
    hasher.update(bits.data)
    hasher.update(lengths.data)
    hasher.update(sample_ids.data)
    hasher.update(starts.data)
    return hasher.intdigest()


def _schema() -> Any:
    import pyarrow as pa

    return pa.schema(
        [
            ("input_ids", pa.list_(pa.int32())),
            ("loss_mask", pa.binary()),
            ("lengths", pa.list_(pa.int32())),
            ("sample_ids", pa.list_(pa.int64())),
            ("starts", pa.list_(pa.int32())),
            ("checksum", pa.uint64()),
        ],
        metadata={"brimful_shard": str(SHARD_VERSION)},
    )


def shard_bytes(packs: Sequence[Pack]) -> memoryview:
    """The bytes of a shard file with these packs: the same packs, the same bytes."""
    import pyarrow as pa

    schema = _schema()
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, schema) as writer:
        for begin in range(0, len(packs), _BATCH_ROWS):
            writer.write_batch(_batch(packs[begin : begin + _BATCH_ROWS], schema))
    return memoryview(sink.getvalue())


def _batch(packs: Sequence[Pack], schema: Any) -> Any:
    import pyarrow as pa

    bits = [np.packbits(pack.loss_mask, bitorder="little") for pack in packs]
    lengths = [np.diff(pack.cu_seqlens) for pack in packs]
    sums = [
        _checksum(np.ascontiguousarray(pack.input_ids), mask, length, pack.sample_ids, pack.starts)
        for pack, mask, length in zip(packs, bits, lengths, strict=True)
    ]
    mask_offsets = _offsets(bits)
    masks = pa.Array.from_buffers(
        pa.binary(), len(packs), [None, pa.py_buffer(mask_offsets), pa.py_buffer(np.concatenate(bits))]
    )
    columns = [
        _lists([pack.input_ids for pack in packs]),
        masks,
        _lists(lengths),
        _lists([pack.sample_ids for pack in packs]),
        _lists([pack.starts for pack in packs]),
        pa.array(np.array(sums, dtype=np.uint64)),
    ]
    return pa.record_batch(columns, schema=schema)


def _offsets(rows: Sequence[_Array]) -> _Array:
    offsets = np.zeros(len(rows) + 1, dtype=np.int32)
    np.cumsum([len(row) for row in rows], out=offsets[1:])
    return offsets


def _lists(rows: Sequence[_Array]) -> Any:
    import pyarrow as pa

    return pa.ListArray.from_arrays(pa.array(_offsets(rows)), pa.array(np.concatenate(rows)))


class _Batch:
    """Views of the columns of one batch, made once; a row is then a few slices."""

    def __init__(self, batch: Any) -> None:
        # A flipped bit may lie in what says where the columns are: look before any of them is touched.
        batch.validate(full=True)
        names = batch.schema.names
        self.ids, self.id_offsets = _list_views(batch.column(names.index("input_ids")))
        self.lengths, self.segment_offsets = _list_views(batch.column(names.index("lengths")))
        self.sample_ids, _ = _list_views(batch.column(names.index("sample_ids")))
        self.starts, _ = _list_views(batch.column(names.index("starts")))
        masks = batch.column(names.index("loss_mask"))
        _, offsets, data = masks.buffers()
        self.mask_offsets = np.frombuffer(offsets, dtype=np.int32, count=len(masks) + 1)
        self.bits = np.frombuffer(data, dtype=np.uint8)
        self.checksums = batch.column(names.index("checksum")).to_numpy()


def _list_views(column: Any) -> tuple[_Array, _Array]:
    return column.values.to_numpy(zero_copy_only=True), column.offsets.to_numpy(zero_copy_only=True)


class ShardReader:
    """Packs of one shard by row. The file is mapped; rows are views of it.

    Args:
        path: of the file.
        size: bytes that were committed; another size is refused before anything is mapped, because reading
            behind the end of a mapped file kills the process.

    Raises:
        CorruptFileError: cut short, or no shard.
    """

    def __init__(self, path: str, *, size: int) -> None:
        import os

        import pyarrow as pa

        self.path = path
        try:
            found = os.stat(path).st_size
        except FileNotFoundError as error:
            raise CorruptFileError(f"{path} is missing: its packs were committed, so it was deleted since") from error
        if found != size:
            raise CorruptFileError(f"{path} has {found:,} bytes and was committed with {size:,}: write it again")
        try:
            self._reader = pa.ipc.open_file(pa.memory_map(path))
            version = (self._reader.schema.metadata or {}).get(b"brimful_shard")
        except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
            raise CorruptFileError(f"{path} cannot be read as a shard: {str(error).splitlines()[0]}") from error
        if version != str(SHARD_VERSION).encode():
            raise CorruptFileError(f"{path} has shard version {version!r}; this brimful reads {SHARD_VERSION}")
        for field in _schema():
            if field not in list(self._reader.schema):
                raise CorruptFileError(f"{path} has no column {field.name!r} of type {field.type}: write it again")
        self._batches: list[_Batch | None] = [None] * self._reader.num_record_batches

    def _batch(self, number: int) -> _Batch:
        batch = self._batches[number]
        if batch is None:
            import pyarrow as pa

            try:
                batch = _Batch(self._reader.get_batch(number))
            except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
                raise CorruptFileError(f"{self.path}: batch {number} is damaged ({error}): write it again") from error
            self._batches[number] = batch
        return batch

    def pack(self, row: int) -> Pack:
        """One pack.

        Raises:
            CorruptFileError: its bytes are not those that were written.
        """
        number, at = divmod(row, _BATCH_ROWS)
        if number >= len(self._batches):
            raise CorruptFileError(f"{self.path} has no row {row}: write it again")
        batch = self._batch(number)
        if at >= len(batch.checksums):
            raise CorruptFileError(f"{self.path} has no row {row}: write it again")
        ids = batch.ids[batch.id_offsets[at] : batch.id_offsets[at + 1]]
        bits = batch.bits[batch.mask_offsets[at] : batch.mask_offsets[at + 1]]
        begin, end = batch.segment_offsets[at], batch.segment_offsets[at + 1]
        lengths, sample_ids, starts = batch.lengths[begin:end], batch.sample_ids[begin:end], batch.starts[begin:end]
        if _checksum(ids, bits, lengths, sample_ids, starts) != batch.checksums[at]:
            raise CorruptFileError(f"{self.path}: row {row} has other bytes than were written: write the shard again")
        cu_seqlens = np.zeros(len(lengths) + 1, dtype=np.int32)
        np.cumsum(lengths, out=cu_seqlens[1:])
        mask = np.unpackbits(bits, count=len(ids), bitorder="little").view(np.bool_)
        return Pack(ids, mask, cu_seqlens, sample_ids, starts)
