"""Blobs behind a URL of fsspec."""

from __future__ import annotations

import contextlib
import uuid

import pytest

from brimful.blobs import FsspecBlobStore, open_blob_store
from brimful.errors import StoreError
from brimful.testing.contracts import BlobStoreContract


class TestFsspecBlobStore(BlobStoreContract):
    @pytest.fixture
    def store(self):
        made = open_blob_store(f"memory://{uuid.uuid4().hex}")
        assert isinstance(made, FsspecBlobStore)
        yield made
        with contextlib.suppress(FileNotFoundError):
            made._fs.rm(made._root, recursive=True)


def test_a_file_system_without_exclusive_creation_is_refused():
    """Without it two writers on such a file system would both win and one's packs would vanish."""
    store = FsspecBlobStore(f"memory://{uuid.uuid4().hex}")
    real = store._fs.pipe_file

    class Forgetful:
        def __getattr__(self, name):
            return getattr(type(store._fs_real)(), name) if name != "pipe_file" else self.overwrite  # type: ignore[attr-defined]

        def overwrite(self, path, value, mode="overwrite"):
            return real(path, value)

    store._fs_real = store._fs  # type: ignore[attr-defined]
    store._fs = Forgetful()
    with pytest.raises(StoreError, match="lets two writers create the same name"):
        store.put_if_absent("log/1", b"first")
    assert store.list("log/") == store.list("tmp/") == []
