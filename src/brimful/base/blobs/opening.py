"""Store of a path or a URL."""

from brimful.base.blobs.interface import BlobStore
from brimful.base.blobs.local import LocalBlobStore
from brimful.base.checks import path_of
from brimful.base.typing import AnyPath
from brimful.base.wings import REMOTE_STORE, loaded
from brimful.errors import SettingsError


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
