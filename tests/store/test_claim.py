"""The claim of a directory: shards by size."""

import uuid
from types import SimpleNamespace
from typing import Any

import pytest

from brimful import Plan, PlanSettings, open_packs, open_source, pack_dataset
from brimful.base.blobs import LocalBlobStore, open_blob_store
from brimful.errors import SettingsError
from brimful.store import claim as module
from brimful.store.claim import JobHome, packs_per_shard
from brimful.testing.toys import toy_chat_encoder
from tests.store.stores import texts

Stub: Any = SimpleNamespace
"""An object of which only some attributes are asked."""


@pytest.mark.parametrize(
    ("shard_bytes", "num_packs", "expected"),
    [(400, 100, 10), (439, 100, 10), (440, 100, 11), (39, 100, 1), (0, 100, 1), (4000, 7, 7)],
)
def test_a_shard_holds_packs_of_four_bytes_a_token(shard_bytes, num_packs, expected):
    plan = Stub(capacity=10, num_packs=num_packs)
    assert packs_per_shard(plan, shard_bytes) == expected


@pytest.mark.parametrize("storage", ["features", "a", "z"])
def test_a_job_of_texts_knows_the_kinds_of_storage(tmp_path, storage):
    """A word that a later job with pictures would refuse, and features that nothing makes."""
    with pytest.raises(SettingsError, match="media_storage"):
        pack_dataset(texts(3), toy_chat_encoder(), tmp_path, capacity=8, media_storage=storage)
    assert not list(tmp_path.iterdir())


@pytest.fixture
def store():
    pytest.importorskip("fsspec")
    return open_blob_store(f"memory://{uuid.uuid4().hex}")


def test_the_directory_of_a_local_store_is_the_home(tmp_path):
    home = JobHome(LocalBlobStore(tmp_path / "packs"), tmp_path / "cache")
    assert home.directory == tmp_path / "packs"
    assert home.path("tmp/encoded") == tmp_path / "packs" / "tmp" / "encoded"
    home.directory.mkdir()
    home.path("plan.arrow").write_bytes(b"here")
    home.publish("plan.arrow", "absent")
    home.fetch("plan.arrow")
    assert home.path("plan.arrow").read_bytes() == b"here"


def test_files_go_to_a_url_and_come_back(store, tmp_path, monkeypatch):
    """Piece by piece; one that is absent here is removed there, and one that is absent there leaves the one here."""
    monkeypatch.setattr(module, "_PIECE", 3)
    home, other = JobHome(store, tmp_path / "a"), JobHome(store, tmp_path / "b")
    assert home.directory.parent == tmp_path / "a" / "jobs"
    for directory in (home.directory, other.directory):
        directory.mkdir(parents=True)
    home.path("plan.arrow").write_bytes(b"0123456789")
    home.publish("plan.arrow")
    assert store.get("plan.arrow") == b"0123456789"
    other.fetch("plan.arrow")
    assert other.path("plan.arrow").read_bytes() == b"0123456789"
    home.path("empty").write_bytes(b"")
    home.publish("empty")
    assert store.size("empty") == 0
    other.fetch("empty")
    assert other.path("empty").read_bytes() == b""
    home.path("plan.arrow").unlink()
    home.publish("plan.arrow", "never")
    assert store.size("plan.arrow") is None
    other.fetch("plan.arrow")
    assert other.path("plan.arrow").read_bytes() == b"0123456789"


def test_another_machine_goes_on_with_the_plan_of_the_first(store, tmp_path):
    """The whole job at a URL, twice with caches of their own: the second finds lengths and plan there."""
    rows = [*texts(3, 50, 4), {"nothing": 1}]
    jobs = [
        pack_dataset(
            open_source(rows),
            toy_chat_encoder(),
            store.url,
            PlanSettings(capacity=8, overflow="drop"),
            on_bad_sample="skip",
            cache_dir=tmp_path / cache,
        )
        for cache in ("a", "b")
    ]
    assert jobs[0].plan.fingerprint == jobs[1].plan.fingerprint
    assert jobs[1].seconds == {}
    names = ("plan.arrow", "lengths.arrow", "rejects.jsonl", "dropped.jsonl", "summary.json")
    assert [name for name in names if store.size(name) is None] == []
    (home,) = (tmp_path / "b" / "jobs").iterdir()
    assert Plan.open(home / "plan.arrow").fingerprint == jobs[0].plan.fingerprint
    assert sum(map(len, open_packs(store.url, cache_dir=tmp_path / "copies"))) == 7
