"""File format of packs: Arrow IPC in batches of 64 rows, one row per pack.

===============  ==================  ==========================================================
``input_ids``    list<int32>         tokens of all segments, one after the other; no padding
``loss_mask``    binary              one bit per token, true for targets, lowest bit of a byte first
``lengths``      list<int32>         tokens of each segment
``sample_ids``   list<int64>         sample of each segment
``starts``       list<int32>         first token of the sample in each segment; 0 unless it was cut
``parents``      list<int32>         parent of each segment, of trees: versions 5 and 6
``spans``        list<int32>         begins and ends of the targets of each sample, of trees
``span_sizes``   list<int32>         spans of each sample, of trees
``…``                                columns of attachments (``attachment.py``), of media five; versions 4 and 6
``checksum``     uint64              XXH3-64 of the bytes of the columns before, in this order
===============  ==================  ==========================================================

Packs with media are version 4: a reader that does not support media must not serve their tokens
without them. Their bytes are in separate files (``media/store/files.py``). Trees are version 5, and
6 with media: to a reader that does not support trees, their segments would be samples.
"""

import functools
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import xxhash

from brimful.base.attachment import attachment_store
from brimful.base.ragged import offsets_of
from brimful.base.sharing import SHARING, ShareMode, Sharing, wing_of
from brimful.base.tables import to_arrow
from brimful.base.typing import AnyArray, Offsets
from brimful.store.shards.pack import Pack, PackRows

SHARD_VERSION = 1
"""Version in the metadata of a shard of text."""

ATTACHMENT_VERSION = 4
"""Version of a shard of packs with attachments."""

_VERSIONS = {ShareMode.NONE: (SHARD_VERSION, ATTACHMENT_VERSION)} | {
    share: (kind.shard_version, kind.shard_version + 1) for share, kind in SHARING.items()
}
"""Versions without and with attachments, by what packs share."""

CONTENTS = {
    version: (share, bool(has_attachments))
    for share, versions in _VERSIONS.items()
    for has_attachments, version in enumerate(versions)
}
"""Contents of each version: what packs share, and whether they have attachments. A reader rejects every
other version.
"""

BATCH_ROWS = 64
"""Rows in a record batch. A reader parses a shard batch by batch, and finds row ``r`` in batch
``r // BATCH_ROWS``.
"""

_SINK_BUFFER = 1 << 16
"""Bytes that Arrow collects before it calls ``write`` of the sink."""


def row_checksum(*columns: Any) -> int:
    """Return XXH3-64 over the columns of one row, in file order: tokens first, by far the
    longest.
    """
    ids, *others = columns
    hasher = xxhash.xxh3_64(ids)
    # One call for many small columns: the overhead of a call exceeds hashing its bytes.
    hasher.update(b"".join(others))
    return hasher.intdigest()


def _packed_masks(rows: PackRows) -> tuple[AnyArray, Offsets]:
    """Return the masks of all rows as bits, with the first byte of each row, and the end."""
    tokens = rows.tokens
    # Every mask begins at a byte boundary, so a row can be read without its neighbors.
    offsets = offsets_of(-(-np.diff(tokens) // 8))
    padded = np.zeros(8 * int(offsets[-1]), dtype=np.bool_)
    for start, (a, b) in zip((8 * offsets[:-1]).tolist(), pairwise(tokens.tolist()), strict=True):
        padded[start : start + b - a] = rows.loss_mask[a:b]
    return np.packbits(padded, bitorder="little"), offsets


def _list_column(arrays: Sequence[AnyArray]) -> Any:
    """Return a column of lists, given the values of each row."""
    import pyarrow as pa

    offsets = offsets_of([len(array) for array in arrays]).astype(np.int32)
    return pa.ListArray.from_arrays(to_arrow(offsets), to_arrow(np.concatenate(arrays)))


def batch_digest(checksums: AnyArray) -> str:
    """Return 8 hexadecimal digits for the column of checksums of a batch, which covers all its
    rows.
    """
    return f"{xxhash.xxh3_64_intdigest(checksums.data) & 0xFFFFFFFF:08x}"


def version_of(*, has_attachments: bool, sharing: Sharing | None) -> int:
    """Return the version of shards with attachments, of packs that share, or both.

    >>> version_of(has_attachments=True, sharing=None)
    4
    """
    return _VERSIONS[ShareMode.NONE if sharing is None else sharing.kind][has_attachments]


def shared_columns(version: int) -> tuple[str, ...]:
    """Return the columns of what packs share, in the order in which they enter the checksum of a
    row; none in a shard of other packs.
    """
    share, _ = CONTENTS[version]
    return () if share is ShareMode.NONE else tuple(wing_of(share).SHARD_COLUMNS)


@functools.cache
def schema_of(version: int) -> Any:
    """Return the Arrow schema of a shard."""
    import pyarrow as pa

    _, has_attachments = CONTENTS[version]
    attached = attachment_store().column_types().items() if has_attachments else ()
    return pa.schema(
        [
            ("input_ids", pa.list_(pa.int32())),
            ("loss_mask", pa.binary()),
            ("lengths", pa.list_(pa.int32())),
            ("sample_ids", pa.list_(pa.int64())),
            ("starts", pa.list_(pa.int32())),
            *((name, pa.list_(pa.int32())) for name in shared_columns(version)),
            *attached,
            ("checksum", pa.uint64()),
        ],
        metadata={"brimful_shard": str(version)},
    )


class ShardWriter:
    """Writer of one shard file, a batch of rows at a time. A batch stays in the processor's cache.

    Args:
        sink: anything with ``write``.
        version: of the packs, by ``version_of``.
        root: directory that references to files in it are relative to.

    Attributes:
        batches: 8 hexadecimal digits for each batch so far: the record of the shard holds them, and
            a reader compares them.
    """

    def __init__(self, sink: Any, *, version: int = SHARD_VERSION, root: str = "") -> None:
        import pyarrow as pa

        _, has_attachments = CONTENTS[version]
        self._attached = attachment_store() if has_attachments else None
        self._root = root
        self.batches = ""
        self._schema = schema_of(version)
        # Arrow writes a dozen small pieces for each column; they are collected before they reach
        # Python.
        self._sink = pa.BufferedOutputStream(pa.PythonFile(sink, mode="w"), _SINK_BUFFER)
        self._writer = pa.ipc.new_file(self._sink, self._schema)

    def add(self, rows: PackRows) -> None:
        """Append packs: ``BATCH_ROWS`` in every call but the last, which may have fewer. Only bits
        of masks are copied.
        """
        import pyarrow as pa

        # A reader divides by BATCH_ROWS to find a row, so only the last batch may be short.
        assert 0 < len(rows) <= BATCH_ROWS
        tokens, segments = rows.tokens.tolist(), rows.segments.tolist()
        bits, mask_offsets = _packed_masks(rows)
        # The cells of each row's attachments enter its checksum.
        attached: Sequence[tuple[Any, ...]] = [()] * len(rows)
        if self._attached is not None:
            attached = [
                self._attached.cells_of(items, self._root) for items in rows.attachments or attached
            ]
        sharing_columns = [[*sharing.columns.values()] for sharing in rows.sharings or ()]
        if sharing_columns:
            # In a checksum, columns of what packs share come before cells of attachments.
            cells = [
                (*(array.tobytes() for array in arrays), *others)
                for arrays, others in zip(sharing_columns, attached, strict=True)
            ]
        else:
            cells = list(attached)
        # Memoryviews: they are sliced and joined faster than NumPy views, five for each row.
        ids, masks, lengths, sample_ids, starts = (
            column.data
            for column in (rows.input_ids, bits, rows.lengths, rows.sample_ids, rows.starts)
        )
        row_bounds = zip(
            pairwise(tokens),
            pairwise(segments),
            pairwise(mask_offsets.tolist()),
            cells,
            strict=True,
        )
        checksums = [
            row_checksum(ids[a:b], masks[e:f], lengths[c:d], sample_ids[c:d], starts[c:d], *rest)
            for (a, b), (c, d), (e, f), rest in row_bounds
        ]
        checksum_column = np.array(checksums, dtype=np.uint64)
        self.batches += batch_digest(checksum_column)
        # Lists of Arrow have int32 offsets; ours are int64 because they also count the tokens of
        # whole plans.
        segment_offsets = to_arrow(rows.segments.astype(np.int32))
        mask_buffers = [None, pa.py_buffer(mask_offsets.astype(np.int32)), pa.py_buffer(bits)]
        columns = [
            pa.ListArray.from_arrays(
                to_arrow(rows.tokens.astype(np.int32)), to_arrow(rows.input_ids)
            ),
            pa.Array.from_buffers(pa.binary(), len(rows), mask_buffers),
            *(
                pa.ListArray.from_arrays(segment_offsets, to_arrow(values))
                for values in (rows.lengths, rows.sample_ids, rows.starts)
            ),
            *map(_list_column, zip(*sharing_columns, strict=True)),
            *(() if self._attached is None else self._attached.columns_of(attached)),
            to_arrow(checksum_column),
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def add_packs(
        self, packs: Sequence[Pack], attachments: Sequence[Sequence[Any]] | None = None
    ) -> None:
        """Append packs, with these attachments in place of their own, and write the footer."""
        for start in range(0, len(packs), BATCH_ROWS):
            batch = slice(start, start + BATCH_ROWS)
            self.add(
                PackRows.of_packs(packs[batch], None if attachments is None else attachments[batch])
            )
        self.close()

    def close(self) -> None:
        """Write the footer."""
        self._writer.close()
        # Otherwise the sink would be closed together with the buffer.
        self._sink.detach()
