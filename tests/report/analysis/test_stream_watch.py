"""What people see of a stream is what is in it: whoever is killed, whoever comes back, and whatever was removed."""

from __future__ import annotations

import json
import time

import pytest

from brimful import LazyShardedDataset, StreamDataset, StreamLoader
from brimful.blobs import open_blob_store
from brimful.report.analysis.stream_status import seconds_until_dry
from brimful.report.analysis.stream_watch import StreamWatch
from brimful.serve import remove_acknowledged
from brimful.shards.heartbeats import Beat
from brimful.testing.toys import ToyProducer
from tests.materialize.streams import producer, texts
from tests.shards.beats import beat_fast, wait_for

ROWS = texts([7, 4, 3, 6, 9, 2, 8, 5])


@pytest.fixture(autouse=True)
def _fast(monkeypatch):
    beat_fast(monkeypatch, 0.02)


def beat_of(stream, key, **facts):
    """A heartbeat as a process of any clock could have written it."""
    now = facts.pop("time", time.time())
    counts = facts.pop("counts", {"packs": 40, "tokens": 160, "places": 40, "skipped": 0, "waited": 2.0})
    earlier = dict.fromkeys(counts, 0.0)
    beat = Beat(
        "node-1", facts.pop("number", 0), 10.0, now, 20.0, facts.pop("is_over", False), facts, counts, 0.0, earlier
    )
    open_blob_store(stream).put_atomic(key, json.dumps({"version": 1, **vars(beat)}).encode())


def reader_beat(stream, rank, world_size, position, *, group="run-1", lanes=4, **facts):
    known_facts = {
        "group": group, "dp_rank": rank, "dp_world_size": world_size, "worker": 0, "num_workers": 1, "lanes": lanes,
        "assign": "pack", "tail": "pad", "epoch": 0, "position": position, "waiting_for": "",
    }  # fmt: skip
    beat_of(stream, f"heartbeats/reader-{group}-{rank:06d}-000.json", **{**known_facts, **facts})


def test_a_producer_that_was_killed_counts_what_it_committed(tmp_path):
    """What it had taken and not committed will be taken again: showing it would count samples twice."""
    first = producer(iter(ROWS), tmp_path)
    while not first._records.shards:
        first.step()
    watch = StreamWatch(tmp_path)
    status = watch.look()
    committed = first._records.shards[-1]
    assert (status.shards, status.packs, status.tokens) == (1, committed.cum_packs, committed.cum_tokens)
    assert status.bytes == status.kept_bytes == committed.bytes
    assert status.producers[0].samples_read == committed.state["counts"]["samples_read"]
    assert not status.producers[0].is_closed
    producer(iter(ROWS), tmp_path).run(close=True)
    status = watch.look()
    assert status.is_ended
    assert status.producers[0].is_closed
    assert status.producers[0].samples_read == len(ROWS)
    assert status.packs == status.producers[0].packs
    assert status.seconds_without_shard is not None


def test_several_producers_are_told_apart(tmp_path):
    """One that hangs must be seen beside others that work."""
    names = ("web", "books")
    for name in names:
        producer(iter(ROWS), tmp_path, producer=name).step()
    for name in names:
        producer(iter(ROWS), tmp_path, producer=name).run(close=True)
    status = StreamWatch(tmp_path).look()
    assert [(one.name, one.samples_read, one.is_closed) for one in status.producers] == [
        ("web", len(ROWS), True),
        ("books", len(ROWS), True),
    ]
    assert sum(one.tokens for one in status.producers) == status.tokens
    assert sum(one.shards for one in status.producers) == status.shards


def test_ranks_tell_how_far_they_are(tmp_path):
    """Steps, and steps behind what the stream has, of each rank; and what it waits for."""
    stream = ToyProducer(tmp_path)
    stream.append(6)
    stream.append(4)
    ranks = [StreamLoader(tmp_path, dp_rank=rank, dp_world_size=2, lanes=2, group="run-1") for rank in range(2)]
    batches = [iter(loader) for loader in ranks]
    for _ in range(3):
        next(batches[0])
    next(batches[1])
    watch = StreamWatch(tmp_path)

    def shown():
        (training,) = watch.look().trainings or (None,)
        steps = (
            [(rank.dp_rank, rank.step, rank.steps_behind, rank.packs) for rank in training.ranks] if training else []
        )
        return training if steps == [(0, 3, 2, 3), (1, 1, 4, 1)] else None

    training = wait_for(shown)
    assert (training.group, training.steps_there_are, training.packs_per_step) == ("run-1", 5, 2)
    assert (training.step, training.steps_behind, training.missing_ranks) == (1, 4, ())
    assert training.ranks[0].tokens == 12
    stream.close()
    assert [len(list(batch)) for batch in batches] == [2, 4]
    wait_for(lambda: all(rank.silence.is_over for rank in watch.look().trainings[0].ranks))
    assert watch.look().trainings[0].reading_ranks == ()


def test_workers_of_a_rank_are_one_rank(tmp_path):
    """Four workers read for one rank: their packs add up, and the furthest of them says where it is."""
    torch = pytest.importorskip("torch")
    stream = ToyProducer(tmp_path)
    stream.append(8)
    dataset = StreamDataset(StreamLoader(tmp_path, lanes=1, group="run-1"))
    with pytest.MonkeyPatch.context() as patched:
        info = type("Info", (), {"id": 1, "num_workers": 2})
        patched.setattr(torch.utils.data, "get_worker_info", lambda: info)
        second = iter(dataset)
        next(second)
        next(second)

    def shown():
        ranks = [rank for training in StreamWatch(tmp_path).look().trainings for rank in training.ranks]
        return ranks if ranks and ranks[0].packs == 2 else None

    (rank,) = wait_for(shown)
    assert (rank.step, rank.packs, rank.num_workers) == (4, 2, 2)


def test_a_map_style_data_set_tells_the_rank_that_it_was_given(tmp_path):
    """Megatron's samplers ask by number: which rank asks, only the caller knows."""
    stream = ToyProducer(tmp_path)
    stream.append(8)
    dataset = LazyShardedDataset(tmp_path, num_packs=8, lanes=4, group="run-1", dp_rank=1, dp_world_size=2)
    for number in (2, 3, 6):
        dataset[number]

    def shown():
        trainings = StreamWatch(tmp_path).look().trainings
        return trainings[0] if trainings and trainings[0].ranks[0].packs == 3 else None

    training = wait_for(shown)
    assert [(rank.dp_rank, rank.dp_world_size, rank.step) for rank in training.ranks] == [(1, 2, 1)]
    assert training.missing_ranks == (0,)


def test_another_number_of_ranks_replaces_the_one_before(tmp_path):
    """Of four ranks that were killed two come back: the others are no ranks that are silent, and no rank counts twice."""
    stream = ToyProducer(tmp_path)
    stream.append(40)
    old = time.time() - 3600
    for rank in range(4):
        reader_beat(tmp_path, rank, 4, 8, time=old)
    (training,) = StreamWatch(tmp_path).look().trainings
    assert [rank.silence.is_silent for rank in training.ranks] == [True] * 4
    assert training.steps_per_second is None
    reader_beat(tmp_path, 0, 2, 12)
    (training,) = StreamWatch(tmp_path).look().trainings
    assert [(rank.dp_rank, rank.dp_world_size, rank.step) for rank in training.ranks] == [(0, 2, 3)]
    assert training.missing_ranks == (1,)


@pytest.mark.parametrize("skew", [-7200.0, 7200.0])
def test_clocks_of_others_are_believed_until_a_heartbeat_changes(tmp_path, skew, monkeypatch):
    """R5: a node whose clock is hours off must not look dead while it works, nor alive for hours when it is dead."""
    stream = ToyProducer(tmp_path)
    stream.append(4)
    reader_beat(tmp_path, 0, 1, 4, time=time.time() + skew)
    watch, now = StreamWatch(tmp_path), time.monotonic()
    monkeypatch.setattr("brimful.report.analysis.stream_watch.time.monotonic", lambda: now)

    def silence():
        return watch.look().trainings[0].ranks[0].silence

    assert silence().is_silent is (skew < 0)
    now += 10
    reader_beat(tmp_path, 0, 1, 8, time=time.time() + skew, number=1)
    assert (silence().seconds, silence().is_silent) == (0.0, False)
    now += 29
    assert not silence().is_silent
    now += 2
    assert silence().is_silent


def test_acknowledged_and_removed_shards_stay_counted(tmp_path):
    """What was produced does not become less when its files go."""
    stream = ToyProducer(tmp_path, lanes=1)
    for _ in range(4):
        stream.append(2)
    loader = StreamLoader(tmp_path, group="run-1")
    for number, _ in zip(range(8), loader, strict=False):
        if number in (3, 5):
            loader.ack(checkpoint=f"checkpoint-{number}")
    watch = StreamWatch(tmp_path)
    before = watch.look()
    assert (before.removed_shards, before.bytes) == (0, before.kept_bytes)
    assert remove_acknowledged(tmp_path, ["run-1"], keep=2) == 2
    status = watch.look()
    assert (status.shards, status.packs, status.removed_shards) == (4, 8, 2)
    assert status.bytes == before.bytes
    assert 0 < status.kept_bytes < status.bytes
    (training,) = status.trainings
    assert (training.acked_packs, training.checkpoint, training.first_needed_shard) == (6, "checkpoint-5", 3)


def test_speed_says_when_a_training_ends_or_runs_dry(tmp_path):
    """Two numbers that people plan their day by."""
    stream = ToyProducer(tmp_path)
    stream.append(80)
    reader_beat(tmp_path, 0, 1, 40)  # 2 places a second, so 0.5 steps, of 4 packs
    watch = StreamWatch(tmp_path)
    status = watch.look()
    (training,) = status.trainings
    assert (training.steps_behind, training.steps_per_second, training.wait_share) == (10, 0.5, 0.1)
    assert training.eta_seconds is None
    open_blob_store(tmp_path).put_atomic(
        "producers/000000.json", json.dumps({"producer": "web", "settings": {}}).encode()
    )
    counts = {"packs": 20, "tokens": 80}
    beat_of(tmp_path, "heartbeats/producer-000000.json", producer="web", waiting_for="", counts=counts)
    status = StreamWatch(tmp_path).look()
    assert (status.packs_per_second, status.tokens_per_second) == (1.0, 4.0)
    assert seconds_until_dry(status, status.trainings[0]) == 10 / (0.5 - 1 / 4)
    stream.close()
    status = StreamWatch(tmp_path).look()
    assert status.trainings[0].eta_seconds == 20
    assert seconds_until_dry(status, status.trainings[0]) is None
