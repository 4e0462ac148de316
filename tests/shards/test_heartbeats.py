"""Heartbeats tell people how far a process is; nothing that they do, or fail to do, reaches its work."""

from __future__ import annotations

import json

import pytest

from brimful.blobs import LocalBlobStore
from brimful.errors import StoreFullError
from brimful.shards import Heartbeat, read_beats, reader_key, remove_surplus_readers
from brimful.shards.heartbeats import beating
from tests.shards.beats import beat_fast, wait_for

KEY = "heartbeats/producer-000000.json"


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    beat_fast(monkeypatch, 0.01)


def test_a_process_tells_how_far_it_is_until_it_ends(tmp_path):
    """The whole life of a heartbeat: counts, rates over what was told before, and a goodbye."""
    store, packs = LocalBlobStore(tmp_path), iter(range(10, 100_000, 10))
    with beating(store, lambda: (KEY, {"producer": "web"}, {"packs": next(packs)})):
        wait_for(lambda: KEY in (beats := read_beats(store)) and beats[KEY].number >= 2)
    (beat,) = read_beats(store).values()
    assert beat.is_over
    assert beat.facts == {"producer": "web"}
    assert beat.counts["packs"] == 10 * (beat.number + 1)
    assert beat.earlier_counts == {"packs": 10}
    seconds = beat.seconds - beat.earlier_seconds
    assert beat.rate("packs") == pytest.approx(10 * beat.number / seconds)


def test_an_error_of_the_work_says_no_goodbye(tmp_path):
    """A producer that failed has not ended as it should: it is silent, and not stopped."""
    store = LocalBlobStore(tmp_path)

    def fail():
        with beating(store, lambda: (KEY, {}, {})):
            wait_for(lambda: KEY in read_beats(store))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert not read_beats(store)[KEY].is_over


def test_short_work_leaves_nothing(tmp_path):
    """Tests, and a hundred runs of a cron job, must not leave a hundred objects."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("brimful.shards.heartbeats._FIRST_SECONDS", 60.0)
        with beating(LocalBlobStore(tmp_path), lambda: (KEY, {}, {})):
            pass
    assert read_beats(LocalBlobStore(tmp_path)) == {}


def test_a_failed_write_is_one_warning_and_is_tried_again(tmp_path, logged, monkeypatch):
    """A directory without the right to write, or a full disk, must not stop a training, nor fill its log."""
    store = LocalBlobStore(tmp_path)
    failures = iter(range(3))
    real = store.put_atomic

    def put(key, data):
        if next(failures, None) is not None:
            raise StoreFullError("no space left (planted)")
        real(key, data)

    monkeypatch.setattr(store, "put_atomic", put)
    with beating(store, lambda: (KEY, {}, {})):
        wait_for(lambda: KEY in read_beats(store))
    assert logged == [
        f"{tmp_path}: this process cannot say how far it is, so that nobody can watch it: no space left (planted)"
    ]


def test_damaged_and_foreign_objects_are_left_out(tmp_path):
    """People watch while objects are replaced, by versions of all ages."""
    store = LocalBlobStore(tmp_path)
    Heartbeat(store, lambda: (KEY, {}, {"packs": 1}), interval=60.0).stop(is_over=False)
    store.put_atomic("heartbeats/producer-000001.json", b"{")
    store.put_atomic("heartbeats/producer-000002.json", json.dumps({"version": 99}).encode())
    store.put_atomic("heartbeats/producer-000003.json", json.dumps({"version": 1, "other": 1}).encode())
    store.put_atomic("heartbeats/producer-000004.json", b"[]")
    assert set(read_beats(store)) <= {KEY}


def test_ranks_and_workers_that_are_no_more_are_removed(tmp_path):
    """A run that comes back on fewer nodes: its old ranks would be silent for ever."""
    store = LocalBlobStore(tmp_path)
    keys = [
        reader_key(group, rank, worker) for group in ("run", "run-000000-000") for rank in range(4) for worker in (0, 1)
    ]
    for key in keys:
        store.put_atomic(key, b"{}")
    remove_surplus_readers(store, "run", dp_rank=1, dp_world_size=2, num_workers=1)
    assert set(keys) - set(store.list("heartbeats")) == {reader_key("run", 1, 1)}
    remove_surplus_readers(store, "run", dp_rank=0, dp_world_size=2, num_workers=2)
    gone = {reader_key("run", 1, 1)} | {reader_key("run", rank, worker) for rank in (2, 3) for worker in (0, 1)}
    assert set(keys) - set(store.list("heartbeats")) == gone
