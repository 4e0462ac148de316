"""Reader of a shard: packs by row, as checked views of the mapped file (``format.py`` has its
columns).
"""

import contextlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from brimful.base.attachment import attachment_store
from brimful.base.blobs import BlobStore
from brimful.base.blobs.interface import WRITE_AGAIN
from brimful.base.fingerprint import fingerprint_bytes
from brimful.base.ragged import offsets_of
from brimful.base.sharing import ShareMode, wing_of
from brimful.base.tables import to_numpy
from brimful.base.typing import AnyArray
from brimful.errors import CorruptFileError
from brimful.store.shards.format import (
    BATCH_ROWS,
    CONTENTS,
    batch_digest,
    row_checksum,
    schema_of,
    shared_columns,
)
from brimful.store.shards.pack import Pack

_BOOL = np.dtype(np.bool_)


class _BatchViews:
    """NumPy views of the columns of one batch. Once made, they give a row by a few slices."""

    def __init__(
        self, batch: Any, attached_names: Sequence[str], sharing_names: Sequence[str]
    ) -> None:
        import pyarrow as pa

        # A flipped bit may be in the offsets and buffer sizes: validate before any column is
        # touched.
        batch.validate(full=True)
        # Offsets are Python integers: slicing with them is faster than with NumPy integers.
        self.ids, self.id_offsets = _list_views(batch.column("input_ids"))
        self.lengths, self.segment_offsets = _list_views(batch.column("lengths"))
        # Counted from the first row of the batch. Only differences within a row are used, and its
        # checksum covers its lengths.
        self.cu_seqlens = offsets_of(self.lengths).astype(np.int32)
        self.sample_ids, _ = _list_views(batch.column("sample_ids"))
        self.starts, _ = _list_views(batch.column("starts"))
        self.sharing = [_list_views(batch.column(name)) for name in sharing_names]
        self.bits, self.mask_offsets = _text_views(batch.column("loss_mask"))
        checksums = to_numpy(batch.column("checksum"))
        self.digest = batch_digest(checksums)
        self.checksums: list[int] = checksums.tolist()
        columns = [batch.column(name) for name in attached_names]
        views = [
            (_list_views if pa.types.is_list(column.type) else _text_views)(column)
            for column in columns
        ]
        # Columns without a value in this batch need no slices.
        self.attached = [(data.data, offsets) if len(data) else None for data, offsets in views]

    def sharing_of(self, row: int) -> list[AnyArray]:
        """Return the columns of what a pack's samples share; empty if they share nothing."""
        return [values[offsets[row] : offsets[row + 1]] for values, offsets in self.sharing]

    def attached_of(self, row: int) -> list[bytes]:
        """Return the stored cells of a pack's attachments; empty in a shard of text."""
        # A copy is checked and then parsed: the mapped file may change in between.
        return [
            b"" if view is None else view[0][view[1][row] : view[1][row + 1]].tobytes()
            for view in self.attached
        ]


def _text_views(column: Any) -> tuple[AnyArray, list[int]]:
    """Return the bytes of a binary column, without a copy, and its offsets."""
    _, offsets, data = column.buffers()
    return np.frombuffer(data, dtype=np.uint8), np.frombuffer(offsets, dtype=np.int32).tolist()


def _list_views(column: Any) -> tuple[AnyArray, list[int]]:
    """Return the values of a list column, without a copy, and its offsets."""
    return to_numpy(column.values), to_numpy(column.offsets).tolist()


class ShardReader:
    """Packs of one shard by row. The file is mapped; rows are views of it.

    Args:
        path: of the file.
        size: committed bytes; another size is rejected before anything is mapped, because reading
            past the end of a mapped file kills the process.
        batches: committed digests of its batches (``ShardWriter.batches``), compared when a batch
            is first read: rows of another shard have valid checksums too. None if the record has
            none.
        files: opens the files that its packs refer to; needed for shards with attachments.

    Attributes:
        path: of the file.
        has_attachments: true if its packs may hold attachments.

    Raises:
        CorruptFileError: cut short, or not a shard.
    """

    def __init__(
        self,
        path: str,
        *,
        size: int,
        batches: str | None = None,
        files: Callable[[], Any] = lambda: None,
    ) -> None:
        import pyarrow as pa

        self.path, self._digests, self._files = path, batches, files
        try:
            file_size = os.stat(path).st_size
        except FileNotFoundError as error:
            raise CorruptFileError(
                f"{path} is missing: its packs were committed, so it was deleted since"
            ) from error
        if file_size != size:
            raise CorruptFileError(
                f"{path} has {file_size:,} bytes and was committed with {size:,}: {WRITE_AGAIN}"
            )
        try:
            self._reader = pa.ipc.open_file(pa.memory_map(path))
            version = (self._reader.schema.metadata or {}).get(b"brimful_shard")
        except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
            raise CorruptFileError(
                f"{path} cannot be read as a shard: {str(error).splitlines()[0]}"
            ) from error
        versions = {str(version).encode(): version for version in CONTENTS}
        if version not in versions:
            known = ", ".join(map(str, versions.values()))
            raise CorruptFileError(
                f"{path} has shard version {version!r}; this brimful reads {known}"
            )
        for field in schema_of(versions[version]):
            if field not in list(self._reader.schema):
                raise CorruptFileError(
                    f"{path} has no column {field.name!r} of type {field.type}: {WRITE_AGAIN}"
                )
        share, self.has_attachments = CONTENTS[versions[version]]
        self._wing = None if share is ShareMode.NONE else wing_of(share)
        self._sharing_names = shared_columns(versions[version])
        self._attached = attachment_store() if self.has_attachments else None
        self._batches: dict[int, _BatchViews] = {}

    def _open_batch(self, batch_index: int) -> _BatchViews:
        """Parse and validate one batch, and keep its views."""
        import pyarrow as pa

        try:
            batch = _BatchViews(
                self._reader.get_batch(batch_index),
                () if self._attached is None else self._attached.COLUMNS,
                self._sharing_names,
            )
        except (pa.ArrowException, OSError, MemoryError, ValueError) as error:
            raise CorruptFileError(
                f"{self.path}: batch {batch_index} is damaged ({error}): {WRITE_AGAIN}"
            ) from error
        if self._digests is not None:
            committed = self._digests[8 * batch_index : 8 * (batch_index + 1)]
            if batch.digest != committed:
                raise CorruptFileError(
                    f"{self.path}: batch {batch_index} has other bytes than were committed: "
                    f"{WRITE_AGAIN}"
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
            raise CorruptFileError(f"{self.path} has no row {row}: {WRITE_AGAIN}")
        ids = batch.ids[batch.id_offsets[i] : batch.id_offsets[i + 1]]
        bits = batch.bits[batch.mask_offsets[i] : batch.mask_offsets[i + 1]]
        first, end = batch.segment_offsets[i], batch.segment_offsets[i + 1]
        lengths, sample_ids, starts = (
            batch.lengths[first:end],
            batch.sample_ids[first:end],
            batch.starts[first:end],
        )
        # The views share the mapped file, which may change under an open reader: check at every
        # read.
        attached, sharing = batch.attached_of(i), batch.sharing_of(i)
        columns = (ids, bits, lengths, sample_ids, starts, *sharing, *attached)
        if row_checksum(*columns) != batch.checksums[i]:
            raise CorruptFileError(
                f"{self.path}: row {row} has other bytes than were written: {WRITE_AGAIN}"
            )
        cu_seqlens = batch.cu_seqlens[first : end + 1]
        # Positional options: keyword arguments take as long as unpacking the bits.
        mask = np.unpackbits(bits, None, len(ids), "little").view(_BOOL)
        return Pack(
            *(ids, mask, cu_seqlens - cu_seqlens[0], sample_ids, starts),
            () if self._attached is None else self._attached.stored(attached, self._files()),
            None if self._wing is None else self._wing.of_shard(sharing, sample_ids, lengths),
        )


@contextlib.contextmanager
def checked_file(
    store: BlobStore, key: str, xxh3_128: str, *, in_place: bool = False
) -> Iterator[str]:
    """Yield the path of a shard whose bytes have the committed hash: of a copy that is removed with
    the block.

    Args:
        store, key, xxh3_128: of the shard.
        in_place: yield the file itself if the store is local.

    Raises:
        FileNotFoundError: no such shard.
        CorruptFileError: other bytes.
    """
    data = store.get(key)
    if fingerprint_bytes(data) != xxh3_128:
        raise CorruptFileError(f"{store.url}/{key} has other bytes than were committed")
    path = store.local_path(key) if in_place else None
    if path is not None:
        yield path
        return
    with tempfile.NamedTemporaryFile(suffix=".arrow") as file:
        file.write(data)
        file.flush()
        yield file.name
