"""Packs of a finished store by index: its shards, mapped or copied to this machine, and sequences
of packs.
"""

from __future__ import annotations

import abc
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable, Iterator
from functools import cache, cached_property, partial
from typing import Any, overload

from brimful.base.attachment import attachment_store
from brimful.base.blobs import BlobStore, PromisedBlobs, open_blob_store
from brimful.base.blobs.interface import BlobCopies, BlobCopy
from brimful.base.checks import path_of, position
from brimful.base.fingerprint import short
from brimful.base.typing import AnyPath, Fingerprint
from brimful.base.wings import BLOB_COPIES, loaded
from brimful.base.wording import counted
from brimful.errors import CorruptFileError, UnfinishedStoreError
from brimful.plan import Alignment
from brimful.serve.order import facts_of_store
from brimful.store.shards import Pack, ShardReader, ShardRecord, StreamLog

_MAX_OPEN_SHARDS = 256
"""Maximum number of shards that one process keeps mapped; the shard mapped first is closed
first.
"""

_CACHE_SHARE = 8
"""A process keeps at most ``1 / 8`` of the cache open: a node has many ranks, and each rank has
workers.
"""


class ShardFiles:
    """Packs of the shards of one store, by record and row. Each process opens its own files.

    Args:
        store: blob store of the shards.
        files: opens the files that their packs refer to.
        cache_dir, cache_bytes: see ``open_packs``; a local store without a ``cache_dir`` is read in
            place.
    """

    def __init__(
        self,
        store: BlobStore,
        files: Callable[[], Any],
        *,
        cache_dir: AnyPath | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self.store, self._attached = store, files
        self._cache = cache_dir, cache_bytes
        self.is_copied = cache_dir is not None or store.local_path("") is None
        self._promised = PromisedBlobs(store)
        # Each with the copy that it reads; None in place.
        self._open: OrderedDict[int, tuple[ShardReader, BlobCopy | None]] = OrderedDict()

    @cached_property
    def copies(self) -> BlobCopies:
        """Cache of this machine; its directory is made at the first use."""
        copies: BlobCopies = loaded(BLOB_COPIES)(self.store, *self._cache)
        return copies

    def pack(self, record: ShardRecord, row: int) -> Pack:
        """Return one pack of a shard.

        Raises:
            CorruptFileError: the shard differs from the committed shard; a damaged copy is
                downloaded again first.
        """
        try:
            return self._shard(record).pack(row)
        except CorruptFileError:
            self._close(record.seq)
            # A copy was undamaged when it was downloaded, and was damaged later, by a power failure
            # or a disk.
            if not (self.is_copied and self.copies.discard(record.xxh3_128)):
                raise
            return self._shard(record).pack(row)

    def has_attachments(self, record: ShardRecord) -> bool:
        """Return true if the packs of a shard may hold attachments."""
        return self._shard(record).has_attachments

    def _shard(self, record: ShardRecord) -> ShardReader:
        """Return the reader of a shard, mapped at the first call."""
        if record.seq not in self._open:
            while len(self._open) >= self._max_open(record):
                self._close(next(iter(self._open)))
            self._open[record.seq] = self._opened(record)
        return self._open[record.seq][0]

    def _close(self, seq: int) -> None:
        """Release the copy of a shard, so that its space can be used for another."""
        _, copy = self._open.pop(seq, (None, None))
        if copy is not None:
            copy.close()

    def _max_open(self, record: ShardRecord) -> int:
        if not self.is_copied:
            return _MAX_OPEN_SHARDS
        return max(
            2, min(_MAX_OPEN_SHARDS, self.copies.max_bytes // (_CACHE_SHARE * max(record.bytes, 1)))
        )

    def _opened(self, record: ShardRecord) -> tuple[ShardReader, BlobCopy | None]:
        read = partial(ShardReader, size=record.bytes, batches=record.batches, files=self._attached)
        path = self.store.local_path(record.file)
        if path is not None and not self.is_copied:
            self._promised.size(record.file)
            return read(path), None
        copy = self.copies.open(record.file, size=record.bytes, xxh3_128=record.xxh3_128)
        try:
            return read(copy.path), copy
        except BaseException:
            copy.close()
            raise


class IndexedPacks(abc.ABC):
    """Base of sequences of packs, with negative indices, slices and iteration as in a list."""

    _noun = "pack"
    """Name of one element, for messages."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def _pack(self, index: int) -> Pack:
        """Return the pack with an index from 0 to ``len(self) - 1``."""

    @overload
    def __getitem__(self, index: int) -> Pack: ...

    @overload
    def __getitem__(self, index: slice) -> list[Pack]: ...

    def __getitem__(self, index: int | slice) -> Pack | list[Pack]:
        """Return one pack, or the packs of a slice, as a list does.

        Raises:
            IndexError: no such pack.
            CorruptFileError: the file was damaged since it was written; names file and row.
        """
        if isinstance(index, slice):
            return [self._pack(i) for i in range(*index.indices(len(self)))]
        return self._pack(position(index, len(self), self._noun))

    def __iter__(self) -> Iterator[Pack]:
        return (self._pack(index) for index in range(len(self)))


class PackStore(IndexedPacks):
    """Packs of a directory by index; also a sequence, so any map-style loader accepts it.

    Opening reads the small log; a shard is mapped at the first access to one of its packs, and
    every pack is checked against its checksum when it is read. Picklable and safe to fork: each
    process maps the files itself. A shard at a URL is copied to this machine at the first
    access, once for all its processes.

    Attributes:
        directory: path or URL of the packs.
        capacity: largest number of tokens in a pack.
        identity, notes: parts of the header.
        fingerprint: fingerprint of the plan that the packs were written from.
        alignment: alignment that the plan reserved room for:
            ``PackCollator(padding=Padding.of_alignment(…))``.
        attachment_settings: settings that media were encoded with, for ``MediaFeatures.of_packs``; None
            for text.
        attachment_features: settings of the features that the packs hold instead of media; None if they
            hold none.
        num_shards: number of shard files.
        num_tokens: number of tokens in all packs.
        fill_ratio: real tokens ÷ (packs × capacity).
        facts: description of the packs, for the state of a loader.
        media_root: directory to which references to media are relative; empty in a store without
            references.

    Args:
        directory: directory of the packs.
        media_root: current directory of the media; the recorded directory if None.
    """

    def __init__(
        self,
        directory: AnyPath,
        *,
        media_root: AnyPath | None = None,
        cache_dir: AnyPath | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        self.directory = path_of("directory", directory, "the path of a pack store")
        self._store = open_blob_store(directory)
        self._cache: dict[str, Any] = {"cache_dir": cache_dir, "cache_bytes": cache_bytes}
        log = StreamLog(self._store)
        header = log.header()
        self._records, end = log.records()
        self.identity: dict[str, Any] = header["identity"]
        self.notes: dict[str, Any] = header["notes"]
        self.capacity: int = self.identity["capacity"]
        if end is None:
            num_packs = sum(record.packs for record in self._records)
            raise UnfinishedStoreError(
                f"{self.directory} is not finished: {counted(len(self._records), 'shard')} with "
                f"{counted(num_packs, 'pack')} so far, and waits for {log.awaited(self._records)}; "
                "run the command that writes it again"
            )
        self.fingerprint: Fingerprint = self.identity["plan"]
        self.alignment = Alignment(**self.identity.get("alignment", {}))
        self.attachment_settings: dict[str, Any] | None = self.identity.get("media_settings")
        self.attachment_features: dict[str, Any] | None = self.identity.get("media", {}).get(
            "features"
        )
        # Shard i holds the packs below _ends[i] that no earlier shard holds.
        self._ends = [record.cum_packs for record in self._records]
        self.num_shards = len(self._records)
        self.num_tokens = self._records[-1].cum_tokens if self._records else 0
        self.fill_ratio = self.num_tokens / (len(self) * self.capacity) if len(self) else 1.0
        self.facts = {**facts_of_store(self.directory, self.identity), "packs": len(self)}
        self._given_root = None if media_root is None else path_of("media_root", media_root)
        records, root = self._records, self._given_root
        # Without a reference to this object: its files are closed with it, not at a collection.
        # A store of texts opens nothing.
        self._attached = cache(
            lambda: attachment_store().files_of(log.store, records, header["notes"], root)
        )
        self._files = ShardFiles(self._store, self._attached, **self._cache)

    def __reduce__(self) -> tuple[object, ...]:
        return partial(PackStore, media_root=self._given_root, **self._cache), (self.directory,)

    @property
    def media_root(self) -> str:
        """Directory that references to files are relative to."""
        return str(self._attached().root)

    @property
    def census(self) -> Any:
        """Attachments of all packs by kind, and what the store itself holds, from the log."""
        return self._attached().census(self.directory)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    @property
    def has_attachments(self) -> bool:
        """True if packs may hold attachments; all shards of a store agree in this."""
        return bool(self._records) and self._files.has_attachments(self._records[0])

    def _pack(self, index: int) -> Pack:
        record = self._records[bisect_right(self._ends, index)]
        return self._files.pack(record, index - record.cum_packs + record.packs)

    def __repr__(self) -> str:
        return (
            f"PackStore({self.directory!r}, {len(self):,} packs of {self.capacity:,}, "
            f"{self.num_tokens:,} tokens, fill {100 * self.fill_ratio:.2f} %, "
            f"{counted(self.num_shards, 'shard')}, {short(self.fingerprint)})"
        )


def open_packs(
    directory: AnyPath,
    *,
    media_root: AnyPath | None = None,
    cache_dir: AnyPath | None = None,
    cache_bytes: int | None = None,
) -> PackStore:
    """Open a finished pack store.

    Args:
        directory: a path, or a URL that fsspec opens, such as ``s3://bucket/packs``.
        media_root: directory of the media that packs refer to, if they were moved without the
            packs.
        cache_dir: local directory for copies of shards at a URL, shared by the processes of a
            machine; in the cache if None. With a local path, shards are copied from there too, for
            slow network mounts.
        cache_bytes: maximum bytes of the copies; 64 GiB if None. Unused copies are removed first.

    Raises:
        NotAPackStoreError: the directory holds no packs.
        UnfinishedStoreError: the job that writes the store has not ended.
    """
    return PackStore(directory, media_root=media_root, cache_dir=cache_dir, cache_bytes=cache_bytes)
