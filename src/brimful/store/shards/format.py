"""File format of packs: Arrow IPC in batches of 64 rows, one row per pack.

===============  ==================  ==========================================================
``input_ids``    list<int32>         tokens
``loss_mask``    binary              one bit per token, lowest bit of a byte first
``lengths``      list<int32>         tokens of each segment
``sample_ids``   list<int64>         sample of each segment
``starts``       list<int32>         first token of the sample in each segment
``…``                                columns of attachments (``attachment.py``), of media five; version 4
``checksum``     uint64              XXH3-64 of the row, checked at every read
===============  ==================  ==========================================================

Packs with media are version 4: a reader that does not support media must not serve their tokens without them. Their
bytes are in separate files (``media/store/files.py``).
"""

import functools
import os
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash

from brimful.base.attachment import attachment_store
from brimful.base.ragged import offsets_of
from brimful.base.tables import to_arrow, to_numpy
from brimful.base.typing import Offsets
from brimful.errors import CorruptFileError
from brimful.store.shards.pack import Pack, PackRows

SHARD_VERSION = 1
"""Version in the metadata of a shard of text."""

MEDIA_VERSION = 4
"""Version of a shard of packs with media. A reader rejects every version that is not named here."""

_VERSIONS = (SHARD_VERSION, MEDIA_VERSION)

BATCH_ROWS = 64
"""Rows in a record batch. A reader parses a shard batch by batch, and finds row ``r`` in batch ``r // BATCH_ROWS``."""

_SINK_BUFFER = 1 << 16
"""Bytes that Arrow collects before it calls ``write`` of the sink."""

_BOOL = np.dtype(np.bool_)

_Array = np.ndarray[Any, np.dtype[Any]]


def _checksum(*columns: Any) -> int:
    """Return XXH3-64 over the columns of one row, in file order: tokens first, by far the longest."""
    ids, *others = columns
    hasher = xxhash.xxh3_64(ids)
    # One call for many small columns: the overhead of a call exceeds hashing its bytes.
    hasher.update(b"".join(others))
    return hasher.intdigest()


def _packed_masks(rows: PackRows) -> tuple[_Array, Offsets]:
    """Return the masks of all rows as bits, with the first byte of each row, and the end."""
    tokens = rows.tokens
    # Every mask begins at a byte boundary, so a row can be read without its neighbors.
    offsets = offsets_of(-(-np.diff(tokens) // 8))
    padded = np.zeros(8 * int(offsets[-1]), dtype=np.bool_)
    for begin, (a, b) in zip((8 * offsets[:-1]).tolist(), pairwise(tokens.tolist()), strict=True):
        padded[begin : begin + b - a] = rows.loss_mask[a:b]
    return np.packbits(padded, bitorder="little"), offsets


def _batch_digest(checksums: _Array) -> str:
    """Return 8 hexadecimal digits for the column of checksums of a batch, which covers all its rows."""
    return f"{xxhash.xxh3_64_intdigest(checksums.data) & 0xFFFFFFFF:08x}"


@functools.cache
def _schema(version: int) -> Any:
    import pyarrow as pa

    attached = attachment_store().column_types().items() if version == MEDIA_VERSION else ()
    return pa.schema(
        [
            ("input_ids", pa.list_(pa.int32())),
            ("loss_mask", pa.binary()),
            ("lengths", pa.list_(pa.int32())),
            ("sample_ids", pa.list_(pa.int64())),
            ("starts", pa.list_(pa.int32())),
            *attached,
            ("checksum", pa.uint64()),
        ],
        metadata={"brimful_shard": str(version)},
    )


class ShardWriter:
    """Writer of one shard file, a batch of rows at a time. A batch stays in the processor's cache.

    Args:
        sink: anything with ``write``.
        version: ``MEDIA_VERSION`` for packs that may have media.
        media_root: directory that references to files in it are relative to.

    Attributes:
        batches: 8 hexadecimal digits for each batch so far: the record of the shard holds them, and a reader compares
            them.
    """

    def __init__(self, sink: Any, *, version: int = SHARD_VERSION, media_root: str = "") -> None:
        import pyarrow as pa

        self._attached = attachment_store() if version == MEDIA_VERSION else None
        self._media_root = media_root
        self.batches = ""
        self._schema = _schema(version)
        # Arrow writes a dozen small pieces for each column; they are collected before they reach Python.
        self._sink = pa.BufferedOutputStream(pa.PythonFile(sink, mode="w"), _SINK_BUFFER)
        self._writer = pa.ipc.new_file(self._sink, self._schema)

    def add(self, rows: PackRows) -> None:
        """Append packs: ``BATCH_ROWS`` in every call but the last, which may have fewer. Only bits of masks are copied."""
        import pyarrow as pa

        # A reader divides by BATCH_ROWS to find a row, so only the last batch may be short.
        assert 0 < len(rows) <= BATCH_ROWS
        tokens, segments = rows.tokens.tolist(), rows.segments.tolist()
        bits, mask_offsets = _packed_masks(rows)
        attached = self._attached_cells(rows)
        # Memoryviews: they are sliced and joined faster than NumPy views, five for each row.
        ids, masks, lengths, sample_ids, starts = (
            column.data for column in (rows.input_ids, bits, rows.lengths, rows.sample_ids, rows.starts)
        )
        places = zip(pairwise(tokens), pairwise(segments), pairwise(mask_offsets.tolist()), attached, strict=True)
        checksums = [
            _checksum(ids[a:b], masks[e:f], lengths[c:d], sample_ids[c:d], starts[c:d], *cells)
            for (a, b), (c, d), (e, f), cells in places
        ]
        checksum_column = np.array(checksums, dtype=np.uint64)
        self.batches += _batch_digest(checksum_column)
        # Lists of Arrow have int32 offsets; ours are int64 because they also count the tokens of whole plans.
        segment_offsets = to_arrow(rows.segments.astype(np.int32))
        mask_buffers = [None, pa.py_buffer(mask_offsets.astype(np.int32)), pa.py_buffer(bits)]
        columns = [
            pa.ListArray.from_arrays(to_arrow(rows.tokens.astype(np.int32)), to_arrow(rows.input_ids)),
            pa.Array.from_buffers(pa.binary(), len(rows), mask_buffers),
            *(
                pa.ListArray.from_arrays(segment_offsets, to_arrow(values))
                for values in (rows.lengths, rows.sample_ids, rows.starts)
            ),
            *(() if self._attached is None else self._attached.columns_of(attached)),
            to_arrow(checksum_column),
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def add_packs(self, packs: Sequence[Pack], attachments: Sequence[Sequence[Any]] | None = None) -> None:
        """Append packs, with these attachments in place of their own, and write the footer."""
        for begin in range(0, len(packs), BATCH_ROWS):
            batch = slice(begin, begin + BATCH_ROWS)
            self.add(PackRows.of_packs(packs[batch], None if attachments is None else attachments[batch]))
        self.close()

    def _attached_cells(self, rows: PackRows) -> Sequence[tuple[bytes, ...]]:
        """Return the cells of each row's attachments, as they enter its checksum."""
        empty: Sequence[tuple[Any, ...]] = [()] * len(rows)
        if self._attached is None:
            return empty
        return [self._attached.cells_of(items, self._media_root) for items in rows.attachments or empty]

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()
        # Otherwise the sink would be closed together with the buffer.
        self._sink.detach()


class _BatchViews:
    """NumPy views of the columns of one batch. Once made, they give a row by a few slices."""

    def __init__(self, batch: Any, attached_names: Sequence[str]) -> None:
        import pyarrow as pa

        # A flipped bit may be in the offsets and buffer sizes: validate before any column is touched.
        batch.validate(full=True)
        # Offsets are Python integers: slicing with them is faster than with NumPy integers.
        self.ids, self.id_offsets = _list_views(batch.column("input_ids"))
        self.lengths, self.segment_offsets = _list_views(batch.column("lengths"))
        # Counted from the first row of the batch. Only differences within a row are used, and its checksum covers its
        # lengths.
        self.cu_seqlens = offsets_of(self.lengths).astype(np.int32)
        self.sample_ids, _ = _list_views(batch.column("sample_ids"))
        self.starts, _ = _list_views(batch.column("starts"))
        self.bits, self.mask_offsets = _text_views(batch.column("loss_mask"))
        checksums = to_numpy(batch.column("checksum"))
        self.digest = _batch_digest(checksums)
        self.checksums: list[int] = checksums.tolist()
        columns = [batch.column(name) for name in attached_names]
        views = [(_list_views if pa.types.is_list(column.type) else _text_views)(column) for column in columns]
        # Columns without a value in this batch need no slices.
        self.attached = [(data.data, offsets) if len(data) else None for data, offsets in views]

    def attached_of(self, row: int) -> list[bytes]:
        """Return the stored cells of a pack's attachments; empty in a shard of text."""
        # A copy is checked and then parsed: the mapped file may change in between.
        return [b"" if view is None else view[0][view[1][row] : view[1][row + 1]].tobytes() for view in self.attached]


def _text_views(column: Any) -> tuple[_Array, list[int]]:
    """Return the bytes of a binary column, without a copy, and its offsets."""
    _, offsets, data = column.buffers()
    content = np.empty(0, dtype=np.uint8) if data is None else np.frombuffer(data, dtype=np.uint8)
    return content, np.frombuffer(offsets, dtype=np.int32, count=len(column) + 1).tolist()


def _list_views(column: Any) -> tuple[_Array, list[int]]:
    """Return the values of a list column, without a copy, and its offsets."""
    return to_numpy(column.values), to_numpy(column.offsets).tolist()


class ShardReader:
    """Packs of one shard by row. The file is mapped; rows are views of it.

    Args:
        path: of the file.
        size: committed bytes; another size is rejected before anything is mapped, because reading
            past the end of a mapped file kills the process.
        batches: committed digests of its batches (``ShardWriter.batches``), compared when a batch is first
            read: rows of another shard have valid checksums too. None if the record has none.
        media: files that its packs refer to; needed for shards with attachments.

    Attributes:
        path: of the file.
        has_media: true if its packs may hold attachments.

    Raises:
        CorruptFileError: cut short, or not a shard.
    """

    def __init__(self, path: str, *, size: int, batches: str | None = None, media: Any = None) -> None:
        import pyarrow as pa

        self.path, self._digests, self._media = path, batches, media
        try:
            file_size = os.stat(path).st_size
        except FileNotFoundError as error:
            raise CorruptFileError(f"{path} is missing: its packs were committed, so it was deleted since") from error
        if file_size != size:
            raise CorruptFileError(f"{path} has {file_size:,} bytes and was committed with {size:,}: write it again")
        try:
            self._reader = pa.ipc.open_file(pa.memory_map(path))
            version = (self._reader.schema.metadata or {}).get(b"brimful_shard")
        except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
            raise CorruptFileError(f"{path} cannot be read as a shard: {str(error).splitlines()[0]}") from error
        versions = {str(number).encode(): number for number in _VERSIONS}
        if version not in versions:
            known = ", ".join(map(str, versions.values()))
            raise CorruptFileError(f"{path} has shard version {version!r}; this brimful reads {known}")
        for field in _schema(versions[version]):
            if field not in list(self._reader.schema):
                raise CorruptFileError(f"{path} has no column {field.name!r} of type {field.type}: write it again")
        self.has_media = versions[version] == MEDIA_VERSION
        self._attached = attachment_store() if self.has_media else None
        self._batches: dict[int, _BatchViews] = {}

    def _open_batch(self, batch_index: int) -> _BatchViews:
        """Parse and validate one batch, and keep its views."""
        import pyarrow as pa

        try:
            batch = _BatchViews(
                self._reader.get_batch(batch_index), () if self._attached is None else self._attached.COLUMNS
            )
        except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
            raise CorruptFileError(f"{self.path}: batch {batch_index} is damaged ({error}): write it again") from error
        if self._digests is not None:
            committed = self._digests[8 * batch_index : 8 * (batch_index + 1)]
            if batch.digest != committed:
                raise CorruptFileError(
                    f"{self.path}: batch {batch_index} has other bytes than were committed: write the shard again"
                )
        self._batches[batch_index] = batch
        return batch

    def pack(self, row: int) -> Pack:
        """Return one pack.

        Raises:
            CorruptFileError: its bytes differ from what was written.
        """
        batch_index, i = divmod(row, BATCH_ROWS)
        batch = self._batches.get(batch_index)
        if batch is None and batch_index < self._reader.num_record_batches:
            batch = self._open_batch(batch_index)
        if batch is None or i >= len(batch.checksums):
            raise CorruptFileError(f"{self.path} has no row {row}: write it again")
        ids = batch.ids[batch.id_offsets[i] : batch.id_offsets[i + 1]]
        bits = batch.bits[batch.mask_offsets[i] : batch.mask_offsets[i + 1]]
        begin, end = batch.segment_offsets[i], batch.segment_offsets[i + 1]
        lengths, sample_ids, starts = batch.lengths[begin:end], batch.sample_ids[begin:end], batch.starts[begin:end]
        # The views share the mapped file, which may change under an open reader: check at every read.
        attached = batch.attached_of(i)
        if _checksum(ids, bits, lengths, sample_ids, starts, *attached) != batch.checksums[i]:
            raise CorruptFileError(f"{self.path}: row {row} has other bytes than were written: write the shard again")
        cu_seqlens = batch.cu_seqlens[begin : end + 1]
        # Positional options: keyword arguments take as long as unpacking the bits.
        mask = np.unpackbits(bits, None, len(ids), "little").view(_BOOL)
        return Pack(
            *(ids, mask, cu_seqlens - cu_seqlens[0], sample_ids, starts),
            () if self._attached is None else self._attached.stored(attached, self._media),
        )
