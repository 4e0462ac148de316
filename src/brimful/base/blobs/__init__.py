"""Named blobs in a local directory or at an fsspec URL, published whole or not at all.

Every file that brimful writes appears under its final name complete, or does not appear. Two
operations carry all protocols: ``put_atomic`` (last writer wins) and ``put_if_absent`` (first
writer wins, the others get false).

>>> import tempfile
>>> store = open_blob_store(tempfile.mkdtemp())
>>> store.put_if_absent("log/000000000000.json", b"first")
True
>>> store.put_if_absent("log/000000000000.json", b"second")
False
>>> store.get("log/000000000000.json")
b'first'
"""

from brimful.base.blobs.interface import Blob, BlobGroup, BlobStore, PromisedBlobs
from brimful.base.blobs.local import LocalBlobStore
from brimful.base.checks import path_of
from brimful.base.typing import AnyPath
from brimful.base.wings import REMOTE_STORE, loaded
from brimful.errors import SettingsError

__all__ = [
    "Blob",
    "BlobGroup",
    "BlobStore",
    "LocalBlobStore",
    "PromisedBlobs",
    "is_remote",
    "open_blob_store",
]


def is_remote(path: str) -> bool:
    """Return true if a path is a URL of a file system other than the local one.

    >>> is_remote("s3://bucket/packs"), is_remote("file:///data"), is_remote("/data")
    (True, False, False)
    """
    return "://" in path and not path.startswith("file://")


def open_blob_store(url: AnyPath) -> BlobStore:
    """Return the store of a path or URL (``s3://bucket/packs``; ``file://`` is the local one)."""
    text = path_of("directory", url, "a path or a URL").removeprefix("file://")
    if not text:
        raise SettingsError("the path of a store is empty")
    store: BlobStore = loaded(REMOTE_STORE)(text) if is_remote(text) else LocalBlobStore(text)
    return store
