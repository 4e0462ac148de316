"""Packs while the data arrives: each sample once, in an order that kills, twins and restarts do not change."""

from __future__ import annotations

import contextlib
import time

import fsspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import open_packs
from brimful.base.blobs import open_blob_store
from brimful.clusters import remote_blobs as remote
from brimful.clusters.retries import _ATTEMPTS as ATTEMPTS
from brimful.errors import (
    BadSampleError,
    NoTargetError,
    OversizedSampleError,
    SettingsError,
    SourceError,
    StoreError,
    StoreFullError,
    StoreMismatchError,
)
from brimful.store.shards import EndRecord
from brimful.stream import StreamLoader
from brimful.stream.acks import Acks
from brimful.stream.producer.registration import SAMPLES_OF_PRODUCER
from tests.faults.planted import LateStore, full_disk
from tests.stream.producer.streams import (
    HandClock,
    append,
    drain,
    hashes_of,
    producer,
    records_of,
    samples_of,
    shards_of,
    source_of,
    texts,
)

LENGTHS = [7, 6, 4, 2, 5, 3, 5, 8, 9, 2, 2, 10, 3, 3, 4]


def whole(folder, lengths=LENGTHS, **settings):
    """A stream that one producer made without a stop."""
    producer(texts(lengths), folder, **settings).close()
    return folder


def test_the_window_packs_and_shards_have_one_size(tmp_path):
    """The drawing of Lookahead: capacity 10, a window of 4, two packs a shard."""
    statistics = producer(texts([7, 6, 4, 2, 5, 3, 5, 8]), tmp_path).close()
    assert shards_of(tmp_path) == [[[1, 2], [0, 5]], [[7, 3], [4, 6]]]
    assert records_of(tmp_path)[1] == EndRecord(2, 4, 40)
    assert (statistics.samples_read, statistics.samples_packed, statistics.samples_waiting) == (8, 8, 0)
    assert (statistics.packs, statistics.tokens, statistics.shards, statistics.fill_ratio) == (4, 40, 2, 1.0)
    packs = open_packs(tmp_path)
    assert "".join(map(chr, packs[0].input_ids)) == "bbbbbbcccc"
    assert packs[0].loss_mask.tolist() == [False, *[True] * 5, False, *[True] * 3]


def test_a_stream_grows_and_is_read(tmp_path):
    """A growing file: complete rows are packed, the rest waits, and a loader follows."""
    source, stream = source_of(tmp_path, texts([7, 6, 4, 2, 5, 3]))
    one = producer(source, stream)
    drain(one)
    assert shards_of(stream) == [[[1, 2], [0, 5]]]
    assert one.statistics.samples_waiting == 2
    with open(source / "a.jsonl", "a") as file:
        file.write('{"text": "hhh')
    assert not one.step()  # half a line is none
    with open(source / "a.jsonl", "a") as file:
        file.write('hh"}\n{"text": "iiiiiiii"}')
    one.close()  # the last line needs no end
    assert shards_of(stream)[1:] == [[[7, 3], [4, 6]]]
    assert len(list(StreamLoader(stream))) == 4


@pytest.mark.parametrize("stop_after", range(12))
def test_stopped_anywhere_and_started_again_is_never_stopped(tmp_path, stop_after):
    """P8: shards are equal byte for byte, with what was in the window and what was ready."""
    expected = hashes_of(whole(tmp_path / "whole"))
    source, stream = source_of(tmp_path, texts(LENGTHS))
    one = producer(source, stream)
    for _ in range(stop_after):
        one.step(close=True)
    producer(source, stream).close()
    assert hashes_of(stream) == expected
    assert producer(source, stream).close().samples_packed == len(LENGTHS)


@given(
    lengths=st.lists(st.integers(1, 12), min_size=1, max_size=40),
    schedule=st.lists(st.sampled_from(["arrive", "step", "twin", "kill"]), max_size=40),
    options=st.fixed_dictionaries(
        {
            "packs_per_shard": st.integers(1, 4),
            "lookahead": st.integers(1, 8),
            "lanes": st.integers(1, 3),
            "overflow": st.sampled_from(["drop", "truncate", "truncate_left", "split"]),
            "algorithm": st.sampled_from(["best_fit_decreasing", "first_fit_decreasing", "next_fit"]),
        }
    ),
)
def test_any_schedule_gives_the_stream_of_one_run(tmp_path_factory, lengths, schedule, options):
    """P1, P2, P8: arrivals, two processes and kills in any order change neither samples nor their order."""
    folder = tmp_path_factory.mktemp("any")
    rows = texts(lengths)
    if options["overflow"] == "drop" and min(lengths) > 10:
        rows[0] = {"text": "aa"}
    expected = folder / "whole"
    producer(rows, expected, no_target="keep", **options).close()

    source, stream = folder / "in", folder / "out"
    source.mkdir()
    num_arrived = 0

    def start():
        return producer(source, stream, no_target="keep", **options)

    twins = [start(), start()]
    for event in schedule:
        if event == "arrive" and num_arrived < len(rows):
            append(source / "a.jsonl", rows[num_arrived : num_arrived + 3])
            num_arrived = min(num_arrived + 3, len(rows))
        elif event == "kill":
            twins[0] = start()
        elif event != "arrive":
            twins[event == "twin"].step()
    append(source / "a.jsonl", rows[num_arrived:])
    twins[0].close()
    twins[1].close()
    assert hashes_of(stream) == hashes_of(expected)
    samples = samples_of(stream)
    if options["overflow"] != "split":
        assert len(samples) == len(set(samples))
    assert twins[1].statistics == twins[0].statistics == start().close()


def test_iterators_are_given_again_from_their_beginning(tmp_path):
    """Rows that are committed are passed over; other rows are refused, and so are too few (P6)."""
    rows = texts(LENGTHS)
    one = producer(iter(rows), tmp_path / "out")
    while not records_of(tmp_path / "out")[0] and one.step():
        pass
    with pytest.raises(SourceError, match="list of rows has 3 rows and 15 of them are committed"):
        producer(rows[:3], tmp_path / "out").close()
    with pytest.raises(SourceError, match="row 14 is not the committed one"):
        producer([*rows[:-1], {"text": "other"}], tmp_path / "out").close()
    twin = producer(rows, tmp_path / "out")
    twin.close()
    assert one.close() == twin.statistics
    assert hashes_of(tmp_path / "out") == hashes_of(whole(tmp_path / "whole"))


def test_several_producers_feed_one_stream(tmp_path):
    """Each has sample ids of its own; the stream ends when all are closed, and with the last of them."""
    stream = tmp_path / "out"
    first, second = (producer(texts(LENGTHS), stream, producer=name) for name in ("web", "books"))
    for _ in range(3):
        first.step()
        second.step()
    first.close()
    assert records_of(stream)[1] is None
    second.close()
    assert records_of(stream)[1] is not None
    samples = samples_of(stream)
    numbers = range(len(LENGTHS))
    assert sorted(samples) == [*numbers, *(SAMPLES_OF_PRODUCER + number for number in numbers)]
    names = [record.state["producer"] for record in records_of(stream)[0]]
    assert set(names) == {"web", "books"}
    # The same packs as each would have made alone.
    alone = shards_of(whole(tmp_path / "alone"))
    assert [shard for shard, name in zip(shards_of(stream), names, strict=True) if name == "web"] == alone


def test_nothing_follows_the_end(tmp_path):
    """P7: a new name is refused; the old one finds its work done."""
    whole(tmp_path)
    with pytest.raises(StoreMismatchError, match="has ended with 4 shards: nothing can follow"):
        producer(texts([3]), tmp_path, producer="late").close()
    num_records = len(records_of(tmp_path)[0])
    producer(texts(LENGTHS), tmp_path).close()
    assert len(records_of(tmp_path)[0]) == num_records


def test_other_settings_are_refused(tmp_path):
    """P3: by name, before anything is written."""
    producer(texts(LENGTHS), tmp_path).step()
    with pytest.raises(StoreMismatchError, match=r"algorithm .best_fit_decreasing there, next_fit here."):
        producer(texts(LENGTHS), tmp_path, algorithm="next_fit").step()
    with pytest.raises(StoreMismatchError, match=r"capacity .10 there, 12 now."):
        producer(texts(LENGTHS), tmp_path, capacity=12, producer="other").step()
    with pytest.raises(SettingsError, match="producer"):
        producer(texts(LENGTHS), tmp_path, producer="a/b").step()


@pytest.mark.parametrize("size", [0, 300, 3000, 5000])
def test_a_full_disk_loses_nothing(tmp_path, size):
    """P4: what was committed stays, and the same producer goes on once the disk has room."""
    source, stream = source_of(tmp_path, texts(LENGTHS))
    one = producer(source, stream)
    with full_disk(after_bytes=size), pytest.raises(StoreFullError):
        one.close()
    one.close()
    assert hashes_of(stream) == hashes_of(whole(tmp_path / "whole"))


class Outage:
    """A file system of fsspec of which some requests get no answer, whether they were done or not."""

    def __init__(self, numbers=(), *, is_done=False):
        self._filesystem, self._numbers, self._is_done = fsspec.filesystem("memory"), numbers, is_done
        self.num_requests = 0

    def __getattr__(self, name):
        method = getattr(self._filesystem, name)
        if name not in ("cat_file", "pipe_file", "ls", "size", "rm_file"):
            return method

        def request(*args, **options):
            number, self.num_requests = self.num_requests, self.num_requests + 1
            if number not in self._numbers:
                return method(*args, **options)
            if self._is_done:
                with contextlib.suppress(OSError):
                    method(*args, **options)
            raise TimeoutError("503 (planted)")

        return request


@pytest.mark.parametrize("is_done", [False, True], ids=["undone", "done"])
def test_an_outage_longer_than_the_repetitions_costs_nothing(tmp_path, monkeypatch, is_done):
    """Wherever it begins the error says what to do, and the same call goes on: also where all was done and no answer came."""

    def through(filesystem):
        monkeypatch.setattr(remote, "filesystem_of", lambda url, **_: (filesystem, url.partition(":/")[2]))
        return filesystem

    monkeypatch.setattr("brimful.clusters.retries.time.sleep", lambda _: None)
    expected = hashes_of(whole(tmp_path / "whole"))
    folder = f"memory://{tmp_path.name}"
    unbroken = through(Outage())
    producer(texts(LENGTHS), f"{folder}/unbroken").close()
    for first in range(0, unbroken.num_requests, 9):
        url, errors = f"{folder}/{first}", []
        through(Outage(range(first, first + 2 * ATTEMPTS), is_done=is_done))
        while len(errors) < 3:
            try:
                producer(texts(LENGTHS), url).close()
                break
            except StoreError as error:
                errors.append(str(error))
        assert 1 <= len(errors) < 3
        assert all("nothing that was committed is lost, run the same command again" in error for error in errors)
        through(Outage())
        assert hashes_of(url) == expected
    fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)


def test_names_that_appear_late_only_delay(tmp_path):
    """R3: a record that is not seen yet is found when its number is taken."""
    source, stream = source_of(tmp_path, texts(LENGTHS))
    twins = []
    for _ in range(2):
        one = producer(source, stream, clock=HandClock())
        late = LateStore(open_blob_store(stream))
        one._store = one._log.store = one._producers._store = late
        twins.append(one)
    while not all(one.is_finished for one in twins):
        for one in twins:
            one.step(close=True)
    assert hashes_of(stream) == hashes_of(whole(tmp_path / "whole"))


def test_a_producer_whose_own_closing_is_not_seen_ends_its_stream(tmp_path, monkeypatch):
    """A store that answers "not found" after a put would leave a stream without an end, and the command would end well."""
    one = producer(texts(LENGTHS[:4]), tmp_path)
    monkeypatch.setattr(one._producers, "is_closed", lambda _: False)
    one.close()
    assert records_of(tmp_path)[1] == EndRecord(1, 2, 19)


def test_producers_that_close_at_once_say_that_none_ended_the_stream(tmp_path, logged):
    """Where names are shown late each takes the other for open: readers would wait, and it would not be known for what."""
    names, streams = ("web", "books"), []
    for name in names:
        one = producer(texts(LENGTHS[:4]), tmp_path, clock=HandClock(), producer=name)
        one._producers._store = LateStore(open_blob_store(tmp_path), most=1)
        streams.append(one)
    while not all(one.is_finished for one in streams):
        for one in streams:
            one.step(close=True)
    assert records_of(tmp_path)[1] is None
    way_out = "if all its producers are and it has no end, run one of their commands again"
    assert logged == [f"{tmp_path} stays open: not closed by {name}; {way_out}" for name in ("books", "web")]
    assert producer(texts(LENGTHS[:4]), tmp_path, producer="web").close().samples_packed == 4
    assert (records_of(tmp_path)[1], len(logged)) == (EndRecord(2, 4, 38), 2)


def test_bad_and_oversized_samples_are_counted_by_reason(tmp_path):
    """Left out by policy, with each sample in one place of the account."""
    rows = [{"text": "aaa"}, {"text": "refuse me"}, {"no": "text"}, {"text": "b"}, {"text": "c" * 11}, {"text": "dd"}]
    policies = {"on_bad_sample": "skip", "no_target": "drop", "overflow": "drop"}
    statistics = producer(rows, tmp_path, **policies).close()
    assert dict(statistics.dropped) == {"malformed": 2, "without_target": 1, "oversized": 1}
    assert samples_of(tmp_path) == [0, 5]
    assert str(statistics) == (
        "6 samples read, 2 packed, 0 waiting, 2 malformed, 1 without_target, 1 oversized; 1 pack in 1 shard, "
        "5 tokens, 50.0 % full"
    )


@pytest.mark.parametrize(
    ("row", "error", "words"),
    [
        ({"text": "refuse me"}, BadSampleError, "refuse"),
        ({"text": "b"}, NoTargetError, 'sample 15 of .*; choose no_target="drop" or no_target="keep"'),
        ({"text": "c" * 11}, OversizedSampleError, "sample 15"),
    ],
)
def test_policies_stop_by_default_and_what_is_committed_stays(tmp_path, row, error, words):
    """The same producer, asked again, meets the same sample: none is passed over in silence, and the way out is said."""
    source, stream = source_of(tmp_path, [*texts(LENGTHS), row])
    one = producer(source, stream)
    for _ in range(2):
        with pytest.raises(error, match=words):
            one.close()
    producer(source, stream, producer="other", on_bad_sample="skip", no_target="keep", overflow="split").close()
    assert {sample - SAMPLES_OF_PRODUCER for sample in samples_of(stream)} >= set(range(len(LENGTHS)))


def test_the_tail_is_divided_over_the_lanes(tmp_path):
    """Four lanes, and the last round ends in each of them with nearly as many packs."""
    whole(tmp_path, [10] * 13, lanes=4, packs_per_shard=2, lookahead=8)
    assert [len(shard) for shard in shards_of(tmp_path)] == [2, 2, 2, 2, 2, 1, 1, 1]
    assert len(list(StreamLoader(tmp_path, dp_world_size=4))) == 4


def arriving(tmp_path, lengths, **settings):
    """A directory with one file of texts, its producer with a clock by hand, and the stream."""
    (source, stream), clock = source_of(tmp_path, texts(lengths)), HandClock()
    one = producer(source, stream, clock=clock, **{"packs_per_shard": None, "lookahead": 1024, **settings})
    drain(one)
    return one, source, stream, clock


@pytest.mark.parametrize("lanes", [1, 4, 16])
def test_defaults_give_every_lane_its_first_pack_within_a_minute(tmp_path, lanes):
    """However slowly data comes: the first samples are divided, so that step 1 begins."""
    one, _, stream, clock = arriving(tmp_path, [2] * 16, lanes=lanes)
    assert one.seconds_to_shard == 30
    clock.sleep(29)
    assert not one.step()
    clock.sleep(2)
    drain(one)
    assert sorted(samples_of(stream)) == list(range(16))
    assert [len(shard) for shard in shards_of(stream)] == ([4] if lanes == 1 else [1] * lanes)
    assert len(next(iter(StreamLoader(stream, timeout=0.1)))) == lanes


def test_samples_leave_when_it_was_said(tmp_path):
    """A display of the seconds must not count past zero, nor show some where nothing waits."""
    one, _, stream, clock = arriving(tmp_path, [2] * 3)
    clock.sleep(12)
    assert one.seconds_to_shard == 18
    clock.sleep(18)
    assert one.seconds_to_shard == 0
    clock.sleep(5)
    assert one.seconds_to_shard == 0
    clock.seconds = 30
    assert one.step()
    assert (sorted(samples_of(stream)), one.seconds_to_shard) == ([0, 1, 2], None)


def test_the_age_begins_again_with_each_shard(tmp_path):
    """Data that comes fast keeps its full packs; in the first round the age counts on, and nothing waits where all has left."""
    one, source, stream, clock = arriving(tmp_path, [3], packs_per_shard=1, lookahead=2)
    clock.sleep(20)
    append(source / "a.jsonl", texts([10]))
    drain(one)
    assert (len(shards_of(stream)), one.seconds_to_shard, one.statistics.samples_waiting) == (1, 30, 1)
    first_round, *_ = arriving(tmp_path / "lanes", [10, 10, 3], lanes=4, packs_per_shard=1, lookahead=2)
    first_round._clock.sleep(7)
    assert (first_round.statistics.shards, first_round.seconds_to_shard) == (2, 23)
    empty, *_ = arriving(tmp_path / "empty", [10], lanes=4, packs_per_shard=1, lookahead=1)
    assert (empty.statistics.shards, empty.seconds_to_shard) == (1, None)
    never, *_ = arriving(tmp_path / "never", [3], max_age=None)
    assert (never.statistics.samples_waiting, never.seconds_to_shard) == (1, None)


def test_a_producer_that_comes_back_lets_its_samples_wait(tmp_path):
    """A restart is not an age: each would leave a pack that is nearly empty."""
    _, source, stream, clock = arriving(tmp_path, [10, 10, 3], packs_per_shard=1, lookahead=2)
    again = producer(source, stream, clock=clock, packs_per_shard=1, lookahead=2)
    assert not again.step()
    assert (shards_of(stream), again.statistics.samples_waiting, again.seconds_to_shard) == ([[[0]], [[1]]], 1, 30)
    append(source / "a.jsonl", texts([7]))
    again.close()
    assert shards_of(stream)[2:] == [[[3, 2]]]


def test_a_step_that_failed_numbers_samples_as_if_it_had_not(tmp_path):
    """The next step of the same process begins after the last record: what it had taken since is taken again, as itself."""
    one, source, stream, _ = arriving(tmp_path, [10] * 4, packs_per_shard=2, lookahead=1)
    append(source / "b.jsonl", texts([10] * 3))
    assert one.step()
    with full_disk(after_bytes=0), pytest.raises(StoreFullError):
        one.step()
    assert one.close().samples_packed == 7
    assert samples_of(stream) == list(range(7))


@pytest.mark.parametrize("num_new", [[1], [1, 1], [3, 2, 1]])
def test_a_stop_keeps_what_is_new_and_nothing_twice(tmp_path, num_new):
    """One sample is enough for a shard; a stop without a new one would make shards without end."""
    one, source, stream, _ = arriving(tmp_path, [], lanes=2)
    for number, count in enumerate(num_new):
        append(source / f"{number}.jsonl", texts([10] * count))
        drain(one)
        for _ in range(3):
            one.stop()
            one.run()
            assert len(records_of(stream)[0]) == number + 1
    assert one.close().samples_packed == sum(num_new)
    assert sorted(samples_of(stream)) == list(range(sum(num_new)))


def test_packs_that_leave_by_age_keep_the_lanes_level(tmp_path):
    """Later rounds fill their packs, and a lane that got fewer gets more in its turn."""
    one, source, stream, clock = arriving(tmp_path, [10] * 6, lanes=4)
    for number, added in enumerate((3, 2, 7)):
        clock.sleep(31)
        drain(one)
        append(source / f"{number}.jsonl", texts([10] * added))
        one.step()
    clock.sleep(31)
    drain(one)
    sizes = [len(shard) for shard in shards_of(stream)]
    assert sizes[:4] == [2, 2, 1, 1]
    assert sorted(sum(sizes[lane::4]) for lane in range(4)) == [4, 4, 5, 5]


def test_packs_are_divided_for_the_first_round_alone(tmp_path):
    """Afterwards each lane has a pack, and what leaves by age leaves as full as it can."""
    one, source, stream, clock = arriving(tmp_path, [2] * 4, lanes=2)
    for _ in range(3):
        clock.sleep(31)
        drain(one)
        append(source / "a.jsonl", texts([2] * 5))
        one.step()
    packs = [len(pack) for shard in shards_of(stream) for pack in shard]
    assert (sum(packs[:2]), packs[2:]) == (4, [5, 5])


def test_a_full_shard_of_one_lane_lets_the_others_wait_no_longer(tmp_path):
    """In the first round the age counts from the first sample, also where data comes fast."""
    one, source, stream, clock = arriving(tmp_path, [], lanes=4, packs_per_shard=4, lookahead=4)
    for number in range(5):
        append(source / f"{number}.jsonl", texts([10] * 2))
        drain(one)
        clock.sleep(6)
    assert len(shards_of(stream)) == 2
    clock.sleep(1)
    drain(one)
    assert [len(shard) for shard in shards_of(stream)] == [4, 4, 1, 1]


def test_stopped_it_keeps_what_it_has_read(tmp_path, monkeypatch):
    """One shard is committed, and the rest is carried over: nothing of it is read again."""
    one, source, stream, clock = arriving(tmp_path, [10, 3, 10, 4, 5], lanes=2)
    one.stop()
    assert one.run().samples_read == 5
    assert len(records_of(stream)[0]) == 1
    (source / "a.jsonl").rename(tmp_path / "gone")
    assert one.run().shards == 1, "nothing new was read, and another shard was made"
    whole_again = producer(source, stream, clock=clock, packs_per_shard=None, lookahead=1024, lanes=2)
    assert whole_again.close().samples_packed == 5
    assert sorted(samples_of(stream)) == list(range(5))


def test_age_reads_no_clock_of_the_wall(tmp_path, monkeypatch):
    """A clock that is set years ahead or back cuts no shard short, and delays none."""
    append(tmp_path / "a.jsonl", texts([3, 4]))
    one = producer(tmp_path / "a.jsonl", tmp_path / "out", max_age=0.3, packs_per_shard=None)
    for seconds in (1e9, 5e9, 0.0):
        monkeypatch.setattr(time, "time", lambda at=seconds: at)
        one.step()
        assert records_of(tmp_path / "out")[0] == []
    monkeypatch.undo()
    time.sleep(0.4)
    one.step()
    assert sorted(samples_of(tmp_path / "out")) == [0, 1]


def test_a_producer_waits_for_training_and_for_disk(tmp_path, monkeypatch):
    """Back-pressure by acknowledged shards, with room for a while before it goes on; and by free bytes."""
    clock = HandClock()
    one = producer(
        texts([10] * 40), tmp_path, packs_per_shard=1, high_water=8, trainings=["run"], clock=clock, min_free_bytes=1
    )
    acks = Acks(open_blob_store(tmp_path), "run")

    def produced():
        clock.sleep(2)
        drain(one)
        return len(records_of(tmp_path)[0])

    assert produced() == 8
    acks.write({"packs_delivered": 1, "frontier": 1})
    assert produced() == 8
    acks.write({"packs_delivered": 3, "frontier": 3})
    assert produced() == 11
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 0}))
    acks.write({"packs_delivered": 11, "frontier": 11})
    assert produced() == 11
    assert "0 bytes are free" in one._pressure.reason


def test_24_hours_of_arrival(tmp_path):
    """Bursts, pauses, and a producer that is down for hours: each sample once, in order, and none waits for ever."""
    rng = np.random.default_rng(0)
    source, stream, clock = tmp_path / "in", tmp_path / "out", HandClock()
    source.mkdir()
    one, total, longest_wait, last_shard = None, 0, 0.0, 0.0
    for minute in range(0, 24 * 60, 10):
        clock.seconds = 60.0 * minute
        hour = minute // 60
        burst = 0 if hour in (3, 4, 15) else int(rng.integers(0, 40 if hour % 6 == 0 else 4))
        append(source / f"{hour:02d}.jsonl", texts(rng.integers(1, 11, burst).tolist()))
        total += burst
        if 8 <= hour < 12:
            one = None  # down
            continue
        one = one or producer(source, stream, max_age=1800, clock=clock, no_target="keep", lookahead=16)
        num_shards = one.statistics.shards
        drain(one)
        if one.statistics.shards > num_shards or not one.statistics.samples_waiting:
            last_shard = clock.seconds
        longest_wait = max(longest_wait, clock.seconds - last_shard)
    assert one is not None
    statistics = one.close()
    assert statistics.samples_packed == total > 300
    assert sorted(samples_of(stream)) == list(range(total))
    # A sample may wait for four windows of packs, and is never further from its place.
    places = np.array(samples_of(stream)) - np.arange(total)
    assert np.abs(places).max() < 16 * 4 * 10
    assert longest_wait <= 5 * 3600
    assert statistics.fill_ratio > 0.8


@pytest.mark.parametrize("stop_after", range(2, 6))
def test_a_tail_is_divided_alike_after_a_stop(tmp_path, stop_after):
    """The division goes on: the next producer must not take whole shards again."""
    settings = {"lanes": 4, "packs_per_shard": 4, "lookahead": 16}
    one = producer(texts([10] * 9), tmp_path, **settings)
    for _ in range(stop_after):
        one.step(close=True)
    whole(tmp_path, [10] * 9, **settings)
    assert [len(shard) for shard in shards_of(tmp_path)] == [3, 2, 2, 2]


def test_only_the_last_two_records_have_their_carry_over(tmp_path):
    """Another process may read the last but one; older ones would fill the disk."""
    folder, counts = tmp_path / "carry" / "000000", []

    def look(_):
        names = sorted(path.name for path in folder.iterdir())
        carried = [
            record.state["carry_over"]["file"] for record in records_of(tmp_path)[0] if record.state["carry_over"]
        ]
        assert names == [name.rpartition("/")[2] for name in carried[-len(names) :]]
        counts.append(len(names))

    producer(texts([7, 6, 5, 4, 3, 2] * 10), tmp_path, packs_per_shard=1, on_shard=look).close()
    # The oldest goes with the next commit.
    assert counts[:3] == [1, 2, 3]
    assert set(counts[3:-2]) == {3}


def test_pauses_of_a_source_that_is_silent_double_up_to_a_second(tmp_path):
    """And begin again with what comes: the first look after a sample is after 20 ms."""
    path = tmp_path / "in.jsonl"
    append(path, texts([5]))
    pauses = []

    class Counting(HandClock):
        def sleep(self, seconds):
            super().sleep(seconds)
            pauses.append(seconds)
            if len(pauses) == 8:
                append(path, texts([5]))
            if len(pauses) == 10:
                one.stop()

    one = producer(path, tmp_path / "out", clock=Counting())
    one.run()
    assert pauses == [0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.0, 1.0, 0.02, 0.04]
