"""A log that grows is followed without a clock of others, a listing, or much work."""

from __future__ import annotations

import os
import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.base.blobs import BlobStore, LocalBlobStore
from brimful.errors import SettingsError, StreamTimeoutError
from brimful.stream import StreamSettings
from brimful.stream.followed_packs import FollowedLog
from brimful.testing.toys import ToyProducer, toy_stream
from tests.faults.planted import LateStore


class Clock:
    """Time that passes only in sleeps; then what was planned for that time happens."""

    def __init__(self, monkeypatch):
        self.now, self.plans, self.sleeps = 0.0, [], 0
        monkeypatch.setattr("brimful.stream.followed_packs.time.monotonic", lambda: self.now)
        monkeypatch.setattr("brimful.stream.followed_packs.time.sleep", self.sleep)

    def at(self, seconds, action):
        self.plans.append((seconds, action))

    def sleep(self, seconds):
        self.now += seconds
        self.sleeps += 1
        for plan in [plan for plan in self.plans if plan[0] <= self.now]:
            self.plans.remove(plan)
            plan[1]()


@pytest.fixture
def clock(monkeypatch):
    return Clock(monkeypatch)


def test_a_wait_ends_with_the_record(tmp_path, clock, logged):
    """C6: late shards cost a wait, and users see for what."""
    producer = ToyProducer(tmp_path)
    log = FollowedLog(LocalBlobStore(tmp_path))
    producer.append(3)
    clock.at(150, lambda: producer.append(2))
    log.wait_until(lambda: len(log.shards) == 2, "pack 3")
    assert [record.packs for record in log.shards] == [3, 2]
    assert 150 <= clock.now <= 157
    assert clock.sleeps < 50
    waiting = f"{tmp_path}: waiting for pack 3, so for log/000000000001.json (1 shard so far) for "
    assert [message[: len(waiting)] for message in logged] == [waiting] * 2


def test_a_wait_ends_with_the_stream(tmp_path, clock):
    """Without it a rank that waits for a shard that will never be hangs the others."""
    producer = ToyProducer(tmp_path)
    log = FollowedLog(LocalBlobStore(tmp_path))
    clock.at(1, lambda: producer.append(1))
    clock.at(2, producer.close)
    log.wait_until(lambda: False, "pack 99")
    assert (len(log.shards), log.end.packs) == (1, 1)


def test_a_timeout_names_the_record(tmp_path, clock):
    """C6: a shard that never arrives ends the run if it was asked to, and says which it is."""
    ToyProducer(tmp_path).append(1)
    log = FollowedLog(LocalBlobStore(tmp_path), timeout=90)
    with pytest.raises(
        StreamTimeoutError,
        match=r"waiting for pack 1, so for log/000000000001.json \(1 shard so far\) for 90 s: is its",
    ):
        log.wait_until(lambda: len(log.shards) > 1, "pack 1")
    assert 90 <= clock.now < 91
    with pytest.raises(SettingsError, match="timeout must be a number of seconds, at least 0, and is -1"):
        StreamSettings(timeout=-1)


def test_a_day_of_arrival(tmp_path, clock):
    """24 hours with bursts, pauses and a producer that is down for hours: nothing is lost and little is asked."""
    producer = ToyProducer(tmp_path)
    for seconds in [*range(0, 3600, 200), *range(7200, 7260, 10), 36_000, 72_000]:
        clock.at(seconds, lambda: producer.append(1))
    clock.at(86_400, producer.close)
    log = FollowedLog(LocalBlobStore(tmp_path))
    for index in range(26):
        log.wait_until(lambda index=index: len(log.shards) > index, f"pack {index}")
    log.wait_until(lambda: False, "the end")
    assert [record.seq for record in log.shards] == list(range(26))
    assert log.end.packs == 26
    assert 86_400 <= clock.now < 86_410
    assert clock.sleeps < 86_400 / 3


def test_one_look_is_one_request(tmp_path, clock):
    """64 ranks that list a directory of 100,000 records every 20 ms are a load of their own."""

    class Counted(LocalBlobStore):
        looks: list[str] = []

        def get(self, key):
            self.looks.append(key)
            return super().get(key)

        def list(self, prefix):
            self.looks.append(prefix)
            return super().list(prefix)

    producer = ToyProducer(tmp_path)
    producer.append(1)
    store = Counted(tmp_path)
    log = FollowedLog(store)
    store.looks.clear()
    clock.at(60, producer.close)
    log.wait_until(lambda: False, "the end")
    assert set(store.looks) == {"log/000000000001.json"}
    assert len(store.looks) == clock.sleeps + 1 < 25


@settings(max_examples=20)
@given(st.integers(0, 6), st.integers(0, 5))
def test_a_stale_view_delays_and_never_skips(tmp_path_factory, num_shards, most):
    """R3: listings and absent names that a mount keeps for a minute."""
    directory = toy_stream(tmp_path_factory.mktemp("stream"), [1] * num_shards)
    late: BlobStore = LateStore(LocalBlobStore(directory), most=most)
    for _ in range(10):
        late.size("stream.json")
    with pytest.MonkeyPatch.context() as patched:
        clock = Clock(patched)
        log = FollowedLog(late)
        log.wait_until(lambda: False, "the end")
        assert [record.seq for record in log.shards] == list(range(num_shards))
        assert clock.sleeps <= most * (num_shards + 1)


def test_seconds_are_those_of_each_wait(tmp_path, clock, logged):
    """The clock of a machine stands anywhere; a second wait is counted from its own beginning."""
    ToyProducer(tmp_path).append(1)
    log = FollowedLog(LocalBlobStore(tmp_path), timeout=200)
    clock.now = 1000.0
    for _ in range(2):
        with pytest.raises(StreamTimeoutError, match=" for 200 s: is its producer running"):
            log.wait_until(lambda: False, "pack 1")
        seconds = [int(re.search(r" for (\d+) s$", message)[1]) for message in logged]
        logged.clear()
        assert [60 * (place + 1) <= number <= 66 * (place + 1) for place, number in enumerate(seconds)] == [True] * 3


@pytest.mark.parametrize(("byte", "share"), [(0, 0.75), (128, 1.0), (192, 1.125)])
def test_pauses_double_up_to_five_seconds_and_end_with_the_timeout(tmp_path, monkeypatch, byte, share):
    """Ranks that began to wait together must not ask together: each pause is longer or shorter by up to a quarter."""
    pauses, urandom = [], os.urandom
    clock = Clock(monkeypatch)
    clock.now = 1000.0
    monkeypatch.setattr("os.urandom", lambda count: bytes([byte]) if count == 1 else urandom(count))
    monkeypatch.setattr(
        "brimful.stream.followed_packs.time.sleep", lambda seconds: (pauses.append(seconds), clock.sleep(seconds))
    )
    producer = ToyProducer(tmp_path)
    log = FollowedLog(LocalBlobStore(tmp_path), timeout=30)
    clock.at(1006, lambda: producer.append(1))
    with pytest.raises(StreamTimeoutError):
        log.wait_until(lambda: False, "pack 9")
    series = [share * min(0.02 * 2**number, 5.0) for number in range(20)]
    num_before = next(number for number in range(20) if 1000 + sum(series[:number]) >= 1006)
    assert pauses[:num_before] == pytest.approx(series[:num_before])
    assert pauses[num_before:-1] == pytest.approx(series[: len(pauses) - num_before - 1]), "from the beginning again"
    assert sum(pauses) == pytest.approx(30)
