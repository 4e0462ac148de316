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

from itertools import pairwise
from typing import Any

import numpy as np
import xxhash

from brimful.errors import CorruptFileError
from brimful.shards.pack import Pack
from brimful.shards.rows import PackRows

__all__ = ["BATCH_ROWS", "SHARD_VERSION", "ShardReader", "ShardWriter"]

SHARD_VERSION = 1
BATCH_ROWS = 64
"""Rows of a batch, the unit in which a file is parsed."""
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


class ShardWriter:
    """Writes packs into one shard file, a batch of rows at a time, so that a batch stays in the processor's cache.

    Args:
        sink: anything with ``write``.
    """

    def __init__(self, sink: Any) -> None:
        import pyarrow as pa

        self._schema = _schema()
        self._writer = pa.ipc.new_file(pa.PythonFile(sink, mode="w"), self._schema)

    def add(self, rows: PackRows) -> None:
        """Append packs; ``BATCH_ROWS`` of them each time but the last."""
        assert 0 < len(rows) <= BATCH_ROWS
        self._writer.write_batch(_batch(rows, self._schema))

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()


def _batch(rows: PackRows, schema: Any) -> Any:
    """A record batch of views; only the bits of the masks are made."""
    import pyarrow as pa

    tokens, segments = rows.tokens.tolist(), rows.segments.tolist()
    bits = [np.packbits(rows.loss_mask[a:b], bitorder="little") for a, b in pairwise(tokens)]
    sums = [
        _checksum(rows.input_ids[a:b], mask, rows.lengths[c:d], rows.sample_ids[c:d], rows.starts[c:d])
        for (a, b), (c, d), mask in zip(pairwise(tokens), pairwise(segments), bits, strict=True)
    ]
    segment_offsets = rows.segments.astype(np.int32)
    mask_offsets = np.cumsum([0, *map(len, bits)]).astype(np.int32)
    masks = [None, pa.py_buffer(mask_offsets), pa.py_buffer(np.concatenate(bits))]
    columns = [
        _lists(rows.input_ids, rows.tokens.astype(np.int32)),
        pa.Array.from_buffers(pa.binary(), len(rows), masks),
        _lists(rows.lengths, segment_offsets),
        _lists(rows.sample_ids, segment_offsets),
        _lists(rows.starts, segment_offsets),
        pa.array(np.array(sums, dtype=np.uint64)),
    ]
    return pa.record_batch(columns, schema=schema)


def _lists(values: _Array, offsets: _Array) -> Any:
    import pyarrow as pa

    return pa.ListArray.from_arrays(pa.array(offsets), pa.array(values))


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
        number, at = divmod(row, BATCH_ROWS)
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
