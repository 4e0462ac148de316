"""A file of a pack store that holds the bytes of many media, read by range."""

from __future__ import annotations

import os
from os import pread

from brimful.blobs import BlobStore
from brimful.media.reference import BadMediumError, MediaKind, Medium

_NOT_OPEN = -1
"""Number in the place of an open file."""


class MediaContainer:
    """Bytes of media in one blob of a store. Picklable and safe to fork: each process opens the file itself.

    Args:
        store: of the packs.
        key: of the blob.
        holds_features: true if its members are blocks of features (``media/features``), not files.

    Attributes:
        path: of the file, or its URL.

    >>> import tempfile
    >>> from brimful.blobs import open_blob_store
    >>> store = open_blob_store(tempfile.mkdtemp())
    >>> store.put_atomic("media/a.tar", b"abcdef")
    >>> MediaContainer(store, "media/a.tar").read(2, 3)
    b'cde'
    """

    def __init__(self, store: BlobStore, key: str, holds_features: bool = False) -> None:
        self.store, self.key, self.holds_features = store, key, holds_features
        self._local_path = store.local_path(key)
        self.path = self._local_path or f"{store.url}/{key}"
        self._descriptor = _NOT_OPEN

    def medium(self, kind: MediaKind, name: str, offset: int, size: int) -> Medium:
        """Return the medium at a range of the bytes."""
        # Not by the constructor, which takes three times as long for a frozen class.
        medium = object.__new__(Medium)
        vars(medium).update(kind=kind, name=name, path=self.path, offset=offset, size=size, data=None, container=self)
        return medium

    def read(self, offset: int, size: int) -> bytes:
        """Return a range of the bytes.

        Raises:
            BadMediumError: the file is gone, cannot be read, or is too short.
        """
        try:
            # By position: the descriptor is shared with forked processes. Not by a memory map: its pages stay in the
            # process until it holds the whole file, and a read past the end of a file that was cut kills the process.
            content = pread(self._descriptor, size, offset) if self._descriptor >= 0 else self._first_read(offset, size)
            if len(content) == size:
                return content
            # A call reads at most 2 GiB, and a film may have more.
            while rest := pread(self._descriptor, size - len(content), offset + len(content)):
                content += rest
        except OSError as error:
            reason = "is missing" if isinstance(error, FileNotFoundError) else str(error.strerror or error)
            raise BadMediumError(f"its file {self.path} {reason}: write the packs again") from error
        if len(content) != size:
            raise BadMediumError(f"its file {self.path} ends at byte {offset + len(content):,}: write the packs again")
        return content

    def damage(self, medium: Medium) -> str:
        """Return the message for bytes of a medium that differ from the written ones."""
        end = medium.offset + medium.num_bytes
        return f"bytes {medium.offset:,} … {end:,} of {self.path} differ from what was written: write the packs again"

    def _first_read(self, offset: int, size: int) -> bytes:
        """Return a range of a file that is not open yet; it stays open unless it is behind a URL."""
        if self._local_path is None:
            return self.store.get_range(self.key, offset, offset + size)
        self._descriptor = os.open(self._local_path, os.O_RDONLY)
        return pread(self._descriptor, size, offset)

    def __reduce__(self) -> tuple[object, ...]:
        return MediaContainer, (self.store, self.key, self.holds_features)

    def __del__(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = _NOT_OPEN

    def __repr__(self) -> str:
        return f"MediaContainer({self.path!r})"
