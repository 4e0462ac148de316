"""Planted faults do what they say, and what is stored survives them."""

from __future__ import annotations

import doctest
import os

import pytest

from brimful import measure_lengths, open_source, plan_packs, write_packs
from brimful.base.blobs import LocalBlobStore, crash_points
from brimful.report.store_check import check_store
from brimful.testing.contracts import BlobStoreContract
from brimful.testing.toys import toy_chat_encoder
from tests.faults import planted
from tests.faults.planted import LateStore, PowerCut
from tests.store.stores import texts, tree


class TestLateStore(BlobStoreContract):
    """Its own writes a view sees at once: only that could be relied on."""

    @pytest.fixture
    def store(self, tmp_path):
        return Published(LocalBlobStore(tmp_path), most=5)


class Published(LateStore):
    """A view that sees what its blobs publish too."""

    def _is_seen(self, key):
        return key.startswith("shards/") or super()._is_seen(key)


def test_the_blobs_of_others_are_late_and_in_any_order(tmp_path):
    """A test with a view that is never late shows nothing."""
    store = LocalBlobStore(tmp_path)
    keys = [f"log/{number}" for number in range(8)]
    for key in keys:
        store.put_atomic(key, b"x")
    late = LateStore(store, most=3)
    views = [late.list("log/") for _ in range(5)]
    assert views[0] != keys
    assert views[0] != keys[: len(views[0])], "a prefix is what readers expect; the view must not be one"
    assert views[-1] == keys


def test_examples_of_the_faults():
    """An example that fails misleads the author of the next fault."""
    assert doctest.testmod(planted).failed == 0


class PowerLost(BaseException):
    """The end of the machine."""


def test_what_was_reported_done_survives_a_power_cut(tmp_path):
    """A commit that is lost after it was reported makes two trainings of one stream."""
    store = LocalBlobStore(tmp_path)
    store.put_atomic("log/0", b"old")
    with PowerCut(tmp_path) as power:
        store.put_atomic("log/0", b"new")
        assert store.put_if_absent("log/1", b"first")
        with store.blob("a shard") as blob:
            blob.write(bytes(100_000))
            blob.publish("shards/a")
        power.cut()
    assert (store.get("log/0"), store.get("log/1"), store.get("shards/a")) == (b"new", b"first", bytes(100_000))


@pytest.mark.parametrize("forgets", ["files", "names"])
def test_a_power_cut_takes_what_was_not_flushed(tmp_path, monkeypatch, forgets):
    """Without it the test above would pass on a store that flushes nothing."""
    store = LocalBlobStore(tmp_path)
    store.put_atomic("log/0", b"old")
    with PowerCut(tmp_path) as power, monkeypatch.context() as patched:
        if forgets == "files":
            patched.setattr(os, "fsync", lambda descriptor: None)
        patched.setattr("brimful.base.blobs.local.sync_directory", lambda folder: None)
        store.put_atomic("log/0", b"new")
        store.put_if_absent("log/1", b"first")
        power.cut()
    assert store.size("log/1") is None
    assert store.get("log/0") == b"old"


def test_a_job_goes_on_after_a_power_cut_anywhere(tmp_path, monkeypatch):
    """R6: at each point of a commit the power goes; then the same job writes the same store."""
    source, encoder = open_source(texts(*range(2, 20))), toy_chat_encoder()
    plan = plan_packs(measure_lengths(source, encoder, targets=False), capacity=64)

    def write(directory):
        return write_packs(plan, source, encoder, directory, shard_bytes=4 * 64 * 2, num_proc=1)

    write(tmp_path / "whole")
    points = []
    monkeypatch.setattr(crash_points, "reach", points.append)
    write(tmp_path / "counted")
    assert len(points) > 20
    for number in range(len(points)):
        directory, passed = tmp_path / str(number), []

        def lose_power(label, number=number, passed=passed):
            passed.append(label)
            if len(passed) == number + 1:
                raise PowerLost

        directory.mkdir()
        with PowerCut(directory) as power:
            monkeypatch.setattr(crash_points, "reach", lose_power)
            with pytest.raises(PowerLost):
                write(directory)
            power.cut()
        monkeypatch.setattr(crash_points, "reach", lambda label: None)
        write(directory)
        assert tree(directory) == tree(tmp_path / "whole"), points[number]
        check_store(directory, plan=plan)
