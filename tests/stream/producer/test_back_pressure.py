"""Reasons for a producer to wait: shards that were not trained on, and the disk."""

import shutil
from collections import namedtuple

import pytest

from brimful.base.blobs import LocalBlobStore
from brimful.errors import CorruptFileError, SettingsError
from brimful.stream.acks import Acks
from brimful.stream.producer.back_pressure import BackPressure
from tests.stream.producer.streams import HandClock

Usage = namedtuple("Usage", "free")


@pytest.fixture
def store(tmp_path):
    return LocalBlobStore(tmp_path / "stream")


def pressure(store, clock, *, high_water=None, trainings=(), min_free_bytes=0):
    return BackPressure(store, high_water=high_water, trainings=trainings, min_free_bytes=min_free_bytes, clock=clock)


def acknowledge(store, training, number, frontier):
    acks = Acks(store, training)
    acks.write({"packs_delivered": number, "frontier": frontier})
    acks.write_rank(0, {"packs_delivered": number})


def test_water_rises_to_the_mark_and_falls_by_a_quarter(store):
    """Eight shards are allowed: it waits at eight, and goes on below seven. The slowest training counts."""
    clock = HandClock()
    one = pressure(store, clock, high_water=8, trainings=["a", "b"])
    assert (one.is_on(7), one.reason) == (False, "")
    clock.sleep(1.0)
    assert one.is_on(8)
    assert one.reason.startswith("8 shards are ahead of training, and ")
    acknowledge(store, "a", 0, 5)
    clock.sleep(1.0)
    assert one.is_on(8)  # b has acknowledged nothing, and needs all of them
    acknowledge(store, "b", 0, 1)
    clock.sleep(1.0)
    assert one.is_on(8)  # seven: it stays full until there is room for two
    assert one.reason.startswith("7 shards")
    acknowledge(store, "b", 1, 2)
    store.put_atomic("acks/b/other", b"")
    assert one.is_on(8)  # it looks once a second
    clock.sleep(1.0)
    assert not one.is_on(8)
    clock.sleep(1.0)
    assert not one.is_on(9)  # no more full, it rises to the mark again
    assert one.is_on(10)  # shards that it commits itself count between two looks


def test_without_a_mark_nothing_is_read(store, monkeypatch):
    monkeypatch.setattr(type(store), "list", lambda *_: pytest.fail("listed"))
    assert not pressure(store, HandClock()).is_on(1_000_000)


def test_a_disk_keeps_its_room(store, monkeypatch, logged):
    """The nearest existing directory is asked; a warning comes at once, and then once a minute."""
    asked, free = [], [99]

    def usage(path):
        asked.append(path)
        return Usage(free[0])

    monkeypatch.setattr(shutil, "disk_usage", usage)
    clock = HandClock()
    clock.seconds = -500.0
    one = pressure(store, clock, min_free_bytes=100)
    assert one.is_on(0)
    assert one.reason.startswith(f"99 bytes are free on the disk of {store.url}, and ")
    assert asked == [str(store.directory.parent)]
    for _ in range(119):
        clock.sleep(0.5)
        assert one.is_on(0)
    assert len(logged) == 1
    clock.sleep(0.5)
    assert one.is_on(0)
    assert len(logged) == 2
    assert logged[0].startswith("waiting: 99 bytes are free")
    free[0] = 100
    clock.sleep(1.0)
    assert not one.is_on(0)
    assert len(asked) == 62


def test_what_cannot_be_is_refused(store):
    with pytest.raises(SettingsError, match="high_water=3 counts shards that no training has acknowledged: name the"):
        pressure(store, HandClock(), high_water=3)
    with pytest.raises(SettingsError, match="high_water must be at least 1"):
        pressure(store, HandClock(), high_water=0, trainings=["a"])
    with pytest.raises(SettingsError, match="min_free_bytes must be at least 0"):
        pressure(store, HandClock(), min_free_bytes=-1)
    one = pressure(store, HandClock(), high_water=3, trainings=["a"])
    store.put_atomic("acks/a/000000000000000.json", b"{}")
    store.put_atomic("acks/a/000000000000001.json", b"[]")
    with pytest.raises(CorruptFileError, match=r"acks/a/000000000000001.json is damaged: TypeError"):
        one.is_on(0)


@pytest.mark.parametrize("mark", [*range(1, 14), 40, 99])
def test_full_it_waits_until_a_quarter_is_trained(store, mark):
    """It would stop at every shard otherwise; a quarter of less than eight is one. The clock may count from anywhere."""
    clock = HandClock()
    clock.seconds = -5.0
    one = pressure(store, clock, high_water=mark, trainings=["a"])
    found = [one.is_on(mark - 1), one.is_on(mark)]
    for trained in range(mark + 1):
        acknowledge(store, "a", trained, trained)
        clock.sleep(1.0)
        if not one.is_on(mark):
            break
    assert (found, trained) == ([False, True], max(1, mark // 4))
