"""Local directory of a job: the directory of its packs, or one in the cache for packs behind a URL."""

import os
from pathlib import Path

from brimful.base.atomic_file import atomic_file
from brimful.base.blobs import BlobStore, LocalBlobStore
from brimful.base.cache import cache_dir as default_cache_dir
from brimful.base.fingerprint import fingerprint_of

_PIECE = 8 << 20
"""Bytes of a file that are read at a time."""


class JobHome:
    """Local files of a job next to its packs; ``publish`` and ``fetch`` copy them to and from a URL.

    Attributes:
        directory: directory of the files: the store, if it is local.
        local: the same as a store, which is marked as used while the job runs.
    """

    def __init__(self, store: BlobStore, cache_dir: str | os.PathLike[str] | None = None) -> None:
        self._store = store
        if isinstance(store, LocalBlobStore):
            self.directory, self._is_remote = store.directory, False
        else:
            self.directory, self._is_remote = default_cache_dir(cache_dir) / "jobs" / fingerprint_of(store.url), True
        self.local = LocalBlobStore(self.directory)

    def path(self, name: str) -> Path:
        """Return the local path of a file next to the packs."""
        return self.directory / name

    def publish(self, *names: str) -> None:
        """Copy files to the store; a file that is absent here is removed there. Local stores already have them."""
        for name in names if self._is_remote else ():
            if not self.path(name).exists():
                self._store.delete(name)
                continue
            with self._store.blob(name) as blob, open(self.path(name), "rb") as file:
                while piece := file.read(_PIECE):
                    blob.write(piece)
                blob.publish(name)

    def fetch(self, name: str) -> None:
        """Copy a file from the store, if it exists: another machine may have begun the job."""
        size = self._store.size(name) if self._is_remote else None
        if size is not None:
            with atomic_file(self.path(name)) as file:
                for start in range(0, size, _PIECE):
                    file.write(self._store.get_range(name, start, min(start + _PIECE, size)))
