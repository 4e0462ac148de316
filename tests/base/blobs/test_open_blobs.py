"""The store behind a path or a URL."""

from __future__ import annotations

import pytest

from brimful.base.blobs import LocalBlobStore, open_blob_store
from brimful.errors import SettingsError


def test_the_store_behind_a_path_or_url(tmp_path):
    """Without it a file:// URL would make a directory named 'file:'."""
    assert isinstance(open_blob_store(tmp_path), LocalBlobStore)
    assert open_blob_store(f"file://{tmp_path}").url == open_blob_store(str(tmp_path)).url == str(tmp_path)
    assert open_blob_store(tmp_path).local_path("a/b") == f"{tmp_path}/a/b"
    assert open_blob_store("memory://x").local_path("a/b") is None
    assert repr(open_blob_store("memory://x/")) == "FsspecBlobStore('memory://x')"
    with pytest.raises(SettingsError, match="the path of a store is empty"):
        open_blob_store("")
