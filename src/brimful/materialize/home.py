"""The local directory in which a job works: that of its packs, or one in the cache for packs behind a URL."""

import os
from pathlib import Path

from brimful.blobs import BlobStore, LocalBlobStore, atomic_file
from brimful.cache import cache_dir as default_cache_dir
from brimful.fingerprint import fingerprint_of

_PIECE = 8 << 20
"""Bytes of a file that are read at once."""


class JobHome:
    """Files of a job beside its packs, on this machine; ``publish`` and ``fetch`` carry them to and from a URL.

    Attributes:
        directory: where the files are written: in the store, if it is local.
        local: the same as a store, whose use is marked while the job runs.
    """

    def __init__(self, store: BlobStore, cache_dir: str | os.PathLike[str] | None = None) -> None:
        self._store = store
        if isinstance(store, LocalBlobStore):
            self.directory, self._is_remote = store.directory, False
        else:
            self.directory, self._is_remote = default_cache_dir(cache_dir) / "jobs" / fingerprint_of(store.url), True
        self.local = LocalBlobStore(self.directory)

    def path(self, name: str) -> Path:
        """Return the local path of a file beside the packs."""
        return self.directory / name

    def publish(self, *names: str) -> None:
        """Put files beside the packs; one that is absent here is removed there. Local files already lie there."""
        for name in names if self._is_remote else ():
            if not self.path(name).exists():
                self._store.delete(name)
                continue
            with self._store.blob(name) as blob, open(self.path(name), "rb") as file:
                while piece := file.read(_PIECE):
                    blob.write(piece)
                blob.publish(name)

    def fetch(self, name: str) -> None:
        """Bring a file from beside the packs, if it is there: another machine may have begun the job."""
        size = self._store.size(name) if self._is_remote else None
        if size is not None:
            with atomic_file(self.path(name)) as file:
                for start in range(0, size, _PIECE):
                    file.write(self._store.get_range(name, start, min(start + _PIECE, size)))
