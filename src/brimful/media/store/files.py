"""Media files next to the shards: for each shard with new bytes, one tar of them, read by range;
and their full check.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import xxhash

from brimful.base.blobs import Blob, BlobStore, PromisedBlobs
from brimful.base.blobs.interface import WRITE_AGAIN
from brimful.base.fingerprint import short_digest
from brimful.base.typing import Fingerprint, Int64Array
from brimful.errors import CorruptFileError
from brimful.media import PlacedMedium
from brimful.media.medium import CHANGED, BadMediumError, MediaContainer
from brimful.media.store.census import KindCount, MediaCensus
from brimful.store.shards.pack import Pack
from brimful.store.shards.shard_record import ShardRecord

_BLOCK = 512
"""Bytes of a block of tar: a header takes one, and every member ends at a multiple of it."""

_MAX_CONTAINERS = 128
"""Containers that one process keeps open; the one opened first is closed for the next."""

ROOT_NOTE = "media_root"
"""Key in the notes of a header: the directory of relative references."""

_SUFFIX = re.compile(r"\.[a-z0-9]{1,8}")


def container_ends(sizes: Int64Array) -> Int64Array:
    """Return the byte after each member of a container, including padding; its bytes begin
    ``padded(sizes)`` before it.

    >>> container_ends(np.array([3, 512])).tolist()
    [1024, 2048]
    """
    return np.cumsum(_BLOCK + padded(sizes), dtype=np.int64)


def padded(sizes: Int64Array) -> Int64Array:
    """Return sizes rounded up to whole blocks of tar."""
    return -(-sizes // _BLOCK) * _BLOCK


class ContainerWriter:
    """Writer of the new media of one shard, in a tar that is opened at the first of them, and of
    the counts of all its media. Equal media make equal bytes.

    Args:
        prefix: of the key of the container; 16 digits of its hash follow.
        open_blob: makes the blob of a prefix.
    """

    def __init__(self, prefix: str, open_blob: Callable[[str], Blob]) -> None:
        self._prefix, self._open_blob = prefix, open_blob
        self._blob: Blob | None = None
        self._num_members = 0
        self._counts: dict[str, KindCount] = {}

    def count(self, item: PlacedMedium, sample_id: int, num_bytes: int, *, is_first: bool) -> None:
        """Count a medium of a pack (``KindCount.add``)."""
        count = self._counts.setdefault(item.medium.kind.value, KindCount())
        count.add(item, sample_id, num_bytes, is_first=is_first)

    def add(
        self, name: str, fingerprint: Fingerprint, content: bytes, *, ending: str | None = None
    ) -> int:
        """Append a medium and return the place of its first byte.

        Args:
            name: of the medium; its extension, if it is plain, is used for the member.
            fingerprint: of its bytes, by which the member is named.
            content: the bytes.
            ending: extension of the member; None takes it from the medium's name.
        """
        from tarfile import GNU_FORMAT, TarInfo

        if self._blob is None:
            self._blob = self._open_blob(self._prefix)
        if ending is None:
            ending = os.path.splitext(name)[1].lower()
            ending = ending if _SUFFIX.fullmatch(ending) else ""
        info = TarInfo(fingerprint + ending)
        info.size = len(content)
        self._blob.write(info.tobuf(GNU_FORMAT))
        offset = self._blob.size
        self._blob.write(content)
        self._blob.write(b"\0" * (-len(content) % _BLOCK))
        self._num_members += 1
        return offset

    def close(self, publish: Callable[[str, Blob], None]) -> dict[str, Any]:
        """End and publish the container, if any, and return the facts of the log on the media.

        Args:
            publish: publishes a blob under a key.
        """
        items = {kind: asdict(count) for kind, count in sorted(self._counts.items())}
        if self._blob is None:
            return {"items": items}
        blob = self._blob
        blob.write(b"\0" * (2 * _BLOCK))
        key = f"{self._prefix}-{blob.xxh3_128[:16]}.tar"
        publish(key, blob)
        file_facts = {"file": key, "bytes": blob.size, "xxh3_128": blob.xxh3_128}
        return {"items": items, **file_facts, "stored": self._num_members}


class MediaFiles:
    """Files that the packs of a store refer to: its own containers, and references relative to the
    root of its media.

    Args:
        store: of the packs.
        records: of its shards.
        root: directory of relative references.
    """

    def __init__(self, store: BlobStore, records: Sequence[ShardRecord], root: str) -> None:
        self.store, self._records, self.root = store, records, root
        self._containers: dict[int, MediaContainer] = {}
        self._promised = PromisedBlobs(store)

    def census(self, directory: str) -> MediaCensus:
        """Return the counts of the media of the store by kind; read from the log alone."""
        return MediaCensus.of(self._records, directory=directory, root=self.root)

    def container(self, shard: int) -> MediaContainer:
        """Return the container of a shard.

        Raises:
            CorruptFileError: it is missing or has another size than was committed.
        """
        container = self._containers.get(shard)
        if container is not None:
            return container
        facts = self._records[shard].media if 0 <= shard < len(self._records) else None
        if facts is None or facts.get("file") is None:
            raise CorruptFileError(
                f"{self.store.url}: a pack names media of shard {shard}, which has none"
            )
        container = MediaContainer(self.store, facts["file"], bool(facts.get("features")))
        size = self._promised.size(facts["file"])
        if size != facts["bytes"]:
            state = "is missing" if size is None else f"has {size:,} bytes"
            raise CorruptFileError(
                f"{container.path} {state} and was committed with {facts['bytes']:,}: write it "
                "again"
            )
        self._containers[shard] = container
        # Media in use keep their file open; it closes with the last of them.
        if len(self._containers) > _MAX_CONTAINERS:
            self._containers.pop(next(iter(self._containers)))
        return container


def files_of(
    store: BlobStore,
    records: Sequence[ShardRecord],
    notes: Mapping[str, Any],
    root: str | None = None,
) -> MediaFiles:
    """Return the files of a store, given its log and the notes of its header.

    Args:
        store: of the packs.
        records: of its shards; the list may grow.
        notes: of the header.
        root: current directory of relative references; the recorded one if None.
    """
    return MediaFiles(store, records, root or recorded_root(store, notes))


def recorded_root(store: BlobStore, notes: Mapping[str, Any]) -> str:
    """Return the current directory of the media of a store.

    If a store was moved with its media, they are found relative to its directory; if it was moved
    alone, by their recorded path. Empty if it has no references.
    """
    root = notes.get(ROOT_NOTE)
    if not isinstance(root, dict):
        return ""
    home = store.local_path("")
    if home is not None and root.get("from_store"):
        moved_root = os.path.normpath(os.path.join(os.path.abspath(home), root["from_store"]))
        if os.path.isdir(moved_root):
            return moved_root
    return str(root.get("path", ""))


def root_note(store: BlobStore, root: str) -> dict[str, Any]:
    """Return the header note with the directory of the media of a store; empty without one."""
    if not root:
        return {}
    home = store.local_path("")
    from_store = (
        {}
        if home is None
        else {"from_store": os.path.relpath(root, os.path.abspath(home)).replace(os.sep, "/")}
    )
    return {ROOT_NOTE: {"path": root, **from_store}}


_PIECE_BYTES = 1 << 24
"""Bytes of a container in memory while it is hashed."""

_MAX_KNOWN = 1 << 20
"""Maximum number of compared files to remember."""


class MediaCheck:
    """Check of the media of packs: containers by their hash, referenced files by their
    fingerprints.

    Attributes:
        num_checked: media so far.
    """

    def __init__(self, files: MediaFiles) -> None:
        self._store = files.store
        self.num_checked = 0
        self._known: set[int] = set()

    def check_shard(self, record: ShardRecord) -> None:
        """Compare the container of a shard with its record."""
        key = (record.media or {}).get("file")
        if record.media is None or key is None:
            return
        store, hasher = self._store, xxhash.xxh3_128()
        try:
            size = store.size(key) or 0
            for start in range(0, size, _PIECE_BYTES):
                hasher.update(store.get_range(key, start, min(start + _PIECE_BYTES, size)))
        except FileNotFoundError as error:
            raise CorruptFileError(
                f"{store.url}/{key} is missing: its media were committed, so it was deleted since; "
                f"{WRITE_AGAIN}"
            ) from error
        if size != record.media["bytes"] or hasher.hexdigest() != record.media["xxh3_128"]:
            raise CorruptFileError(f"{store.url}/{key} has other bytes than were committed")

    def check(self, pack: Pack, name: str) -> None:
        """Compare the files that a pack refers to with their fingerprints; each is read once."""
        for item in pack.attachments:
            medium = item.medium
            self.num_checked += 1
            identity = short_digest(
                os.fsencode(f"{item.fingerprint} {medium.offset} {medium.size} {medium.path}")
            )
            # Containers were compared as a whole.
            if medium.container is not None or identity in self._known:
                continue
            try:
                if medium.fingerprint() != item.fingerprint:
                    raise BadMediumError(CHANGED)
            except BadMediumError as error:
                sample_id = int(pack.sample_ids[item.segment])
                raise CorruptFileError(
                    f"{name}: sample {sample_id}, {item.title}: {error} "
                    f"({medium.path or 'in the row'})"
                ) from error
            # Bounded: reading a file twice costs less than a list of a hundred million.
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known.add(identity)
