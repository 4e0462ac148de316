"""Room for media is asked for, and their sizes are said, before anything is written."""

import shutil
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from brimful.base.attachment import AttachmentStorage
from brimful.base.blobs import LocalBlobStore
from brimful.errors import StoreFullError
from brimful.media.job.media_job import MediaJob

Stub: Any = SimpleNamespace
"""An object of which only some attributes are asked."""


@pytest.mark.parametrize(("pending", "num_bytes"), [([1], 1424), ([0, 1], 3772), ([0], 2348)])
def test_media_of_pending_shards_need_room(tmp_path, monkeypatch, pending, num_bytes):
    """Their bytes and a kibibyte for each, on the disk of a directory that is not there yet; shards that are there need none."""
    store = LocalBlobStore(tmp_path / "not" / "yet")
    asked = []

    def usage(path):
        asked.append(path)
        return Stub(free=num_bytes - len(asked) + 1)

    monkeypatch.setattr(shutil, "disk_usage", usage)
    facts = {"stored_sizes": np.array([100, 200, 400]), "shards": np.array([0, 0, 1]), "store": store}
    said(pending, **facts)
    with pytest.raises(StoreFullError) as refused:
        said(pending, **facts)
    assert asked == [tmp_path, tmp_path]
    needed, free = (f"{number / 1000:.2f} kB" for number in (num_bytes, num_bytes - 1))
    assert refused.value.message.startswith(
        f"{store.url} needs {needed} for media, and {free} are free: free some space, or choose "
    )
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Stub(free=0))
    said([2], **facts)
    said(pending, **{**facts, "store": Stub()})


def said(pending=(), store=None, **values):
    lines = []
    facts = {
        "is_used": np.array([True, False, True]),
        "first_uses": np.array([2]),
        "survey": Stub(sizes=np.array([1000, 5000, 500])),
        "num_stored": 0,
        "num_references": 0,
        "features": None,
        "has_trees": False,
        "stored_bytes": 2048,
    }
    source = Stub(attachment_directories=["/data/a", "/data/b"])
    job = Stub(source=source, resources=Stub(progress=Stub(say=lines.append)), store=store or Stub())
    media = MediaJob(job, AttachmentStorage.BYTES, None)
    media.layout = Stub(**{**facts, **values})
    media.announce(pending)
    return lines


def test_sizes_are_said():
    """Of media in the packs, of what is stored, and where the others are."""
    assert said() == ["media: 2 in the packs (1.50 kB)"]
    assert said(num_stored=1) == ["media: 2 in the packs (1.50 kB); 1 distinct ones stored, 2.05 kB on disk"]
    assert said(num_stored=1, features={}, num_references=1) == [
        "media: 2 in the packs (1.50 kB); 1 distinct ones stored as features, 2.05 kB on disk (4.1 × their bytes); "
        "1 referenced in /data"
    ]
    assert said(is_used=np.array([False] * 3)) == []


@pytest.mark.parametrize(
    ("directories", "root"),
    [(["/data/a", "/data/b"], "/data"), (["/data/a"], "/data/a"), (["/a", "/b"], ""), ([], ""), (["/"], "")],
)
def test_the_root_of_media(directories, root):
    """The directory that holds all of them; none where that is the whole file system."""
    job = Stub(source=Stub(attachment_directories=directories))
    assert MediaJob(job, AttachmentStorage.BYTES, None).root == root
