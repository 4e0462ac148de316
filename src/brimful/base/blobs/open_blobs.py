"""The blob store of a path or URL."""

import os

from brimful.base.blobs.interface import BlobStore
from brimful.base.blobs.local import LocalBlobStore
from brimful.base.blobs.remote import FsspecBlobStore
from brimful.base.checks import path_of
from brimful.errors import SettingsError


def open_blob_store(url: str | os.PathLike[str]) -> BlobStore:
    """Return the store of a path or URL (``s3://bucket/packs``; ``file://`` is the local one)."""
    text = path_of("directory", url, "a path or a URL").removeprefix("file://")
    if "://" in text:
        return FsspecBlobStore(text)
    if not text:
        raise SettingsError("the path of a store is empty")
    return LocalBlobStore(text)
