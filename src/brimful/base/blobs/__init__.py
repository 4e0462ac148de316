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
from brimful.base.blobs.opening import is_remote, open_blob_store

__all__ = [
    "Blob",
    "BlobGroup",
    "BlobStore",
    "LocalBlobStore",
    "PromisedBlobs",
    "is_remote",
    "open_blob_store",
]
