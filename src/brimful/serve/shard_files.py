"""Readers of a store's shards: local files, or checked copies of remote files; a process keeps some open."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, NamedTuple

from brimful.base.blobs import BlobStore, LocalCopies, PromisedBlobs
from brimful.base.fingerprint import fingerprint_stream
from brimful.errors import CorruptFileError
from brimful.store.shards import Pack, ShardReader, ShardRecord

_MAX_OPEN_SHARDS = 256
"""Maximum number of shards that one process keeps mapped; the shard mapped first is closed first."""

_READ_BYTES = 1 << 20
"""Bytes of a shard that are read and hashed together, so that they stay in the CPU cache."""

_CACHE_SHARE = 8
"""A process keeps at most ``1 / 8`` of the cache open: a node has many ranks, and each rank has workers."""


class _OpenShard(NamedTuple):
    reader: ShardReader
    close: Callable[[], None]
    """Release the copy, so that its space can be used for another; without a copy do nothing."""


class ShardFiles:
    """Packs of the shards of one store, by record and row. Each process opens its own files.

    Args:
        store: blob store of the shards.
        media: files that their packs refer to (``files_of`` of ``attachment_store``).
        cache_dir, cache_bytes: see ``open_packs``; a local store without a ``cache_dir`` is read in place.
        are_read_whole: this process reads whole shards, so each is checked against the hash in the log when it is
            opened. Batches are always compared with their digests in the record; this also finds a bit flip between
            columns, and damage in a foreign shard whose record has no digests.
    """

    def __init__(
        self,
        store: BlobStore,
        media: Any,
        *,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
        are_read_whole: bool = False,
    ) -> None:
        self.store, self._media, self._are_read_whole = store, media, are_read_whole
        self._cache = cache_dir, cache_bytes
        self.is_copied = cache_dir is not None or store.local_path("") is None
        self._copies: LocalCopies | None = None
        self._promised = PromisedBlobs(store)
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()

    @property
    def copies(self) -> LocalCopies:
        """Cache of this machine; its directory is made at the first use."""
        if self._copies is None:
            self._copies = LocalCopies(self.store, *self._cache)
        return self._copies

    def pack(self, record: ShardRecord, row: int) -> Pack:
        """Return one pack of a shard.

        Raises:
            CorruptFileError: the shard differs from the committed shard; a damaged copy is downloaded again first.
        """
        try:
            return self._shard(record).pack(row)
        except CorruptFileError:
            shard = self._open.pop(record.seq, None)
            if shard is not None:
                shard.close()
            # A copy was undamaged when it was downloaded, and was damaged later, by a power failure or a disk.
            if not (self.is_copied and self.copies.discard(record.xxh3_128)):
                raise
            return self._shard(record).pack(row)

    def has_media(self, record: ShardRecord) -> bool:
        """Return true if the packs of a shard may hold media."""
        return self._shard(record).has_media

    def _shard(self, record: ShardRecord) -> ShardReader:
        """Return the reader of a shard, mapped at the first call."""
        shard = self._open.get(record.seq)
        if shard is None:
            while len(self._open) >= self._max_open(record):
                self._open.popitem(last=False)[1].close()
            shard = self._open[record.seq] = self._opened(record)
        return shard.reader

    def _max_open(self, record: ShardRecord) -> int:
        if not self.is_copied:
            return _MAX_OPEN_SHARDS
        return max(2, min(_MAX_OPEN_SHARDS, self.copies.max_bytes // (_CACHE_SHARE * max(record.bytes, 1))))

    def _opened(self, record: ShardRecord) -> _OpenShard:
        path = self.store.local_path(record.file)
        if path is not None and not self.is_copied:
            self._promised.size(record.file)
            reader = ShardReader(path, size=record.bytes, batches=record.batches, media=self._media)
            # After the reader, which refuses a missing or truncated file.
            if self._are_read_whole:
                with open(path, "rb", buffering=0) as file:
                    fingerprint = fingerprint_stream(iter(lambda: file.read(_READ_BYTES), b""))
                if fingerprint != record.xxh3_128:
                    raise CorruptFileError(f"{path} has other bytes than were committed: write the shard again")
            return _OpenShard(reader, lambda: None)
        copy = self.copies.open(record.file, size=record.bytes, xxh3_128=record.xxh3_128)
        try:
            reader = ShardReader(copy.path, size=record.bytes, batches=record.batches, media=self._media)
            return _OpenShard(reader, copy.close)
        except BaseException:
            copy.close()
            raise
