"""Blobs that are written one after the other and published together, before the key that promises them."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from brimful.base.blobs.interface import Blob, BlobStore


class BlobGroup:
    """Blobs of one commit: flushed to the device at the same time, and named before the key that commits them.

    Use as a context; unpublished blobs are removed.

    Args:
        store: of the blobs.

    >>> import tempfile
    >>> from brimful.base.blobs import open_blob_store
    >>> store = open_blob_store(tempfile.mkdtemp())
    >>> with BlobGroup(store) as group:
    ...     shard = group.blob("a shard")
    ...     _ = shard.write(b"rows")
    ...     group.add("shards/0", shard)
    ...     group.commit("log/0", b"shard 0 is there")
    True
    >>> store.get("shards/0")
    b'rows'
    """

    def __init__(self, store: BlobStore) -> None:
        self.store = store
        self._stack = ExitStack()
        self._blobs: dict[str, Blob] = {}

    def __enter__(self) -> BlobGroup:
        return self

    def __exit__(self, *details: Any) -> None:
        self._stack.__exit__(*details)

    def blob(self, title: str) -> Blob:
        """Open a blob to be written; it is removed with the group unless it is published.

        Args:
            title: name of the content, for messages.
        """
        return self._stack.enter_context(self.store.blob(title))

    def add(self, key: str, blob: Blob) -> None:
        """Publish a complete blob under a key at the next commit.

        Raises:
            StoreFullError: no space left for its last bytes.
        """
        # Flush now, while this is the last opened blob: the error of a full disk names that one.
        blob.flush_pending()
        self._blobs[key] = blob

    def commit(self, key: str, data: bytes) -> bool:
        """Publish the blobs and then the key, unless it exists; true if this call published the key.

        Published blobs stay, even if another writer was first with the key; the next commit starts empty.
        """
        blobs, self._blobs = self._blobs, {}
        return self.store.commit(key, data, blobs)
