"""What users see of a stream is what is durable in it: also after kills, restarts and removals."""

from __future__ import annotations

import pytest

from brimful.report.analysis.stream_watch import StreamWatch
from brimful.stream import LazyShardedDataset, StreamLoader, remove_acknowledged
from brimful.testing.toys import ToyProducer
from tests.stream.producer.streams import producer, texts

ROWS = texts([7, 4, 3, 6, 9, 2, 8, 5])


@pytest.fixture
def clock(monkeypatch):
    """A clock that a test moves: all processes of these tests are one."""
    times = [1_000.0]
    monkeypatch.setattr("time.time", lambda: times[0])
    monkeypatch.setattr("time.monotonic", lambda: times[0])
    return times


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
    """One that hangs must be seen among others that work."""
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


def test_a_rank_that_falls_behind_is_seen_by_its_step(tmp_path):
    """Each rank that acknowledges leaves its own step; the ranks of an earlier, larger run are left out."""
    stream = ToyProducer(tmp_path, lanes=4)
    for _ in range(4):
        stream.append(4)

    def acknowledge(rank, world_size, num_steps):
        loader = StreamLoader(tmp_path, dp_rank=rank, dp_world_size=world_size, group="run-1")
        for _ in zip(range(num_steps), loader, strict=False):
            pass
        loader.ack(checkpoint=f"checkpoint-{num_steps}")

    for rank in range(4):
        acknowledge(rank, 4, 1)
    acknowledge(0, 2, 3)
    acknowledge(1, 2, 2)
    (training,) = StreamWatch(tmp_path).look().trainings
    assert (training.step, training.steps_there_are, training.steps_behind, training.packs) == (3, 4, 1, 12)
    assert (training.checkpoint, training.packs_per_step, training.dp_world_size) == ("checkpoint-3", 4, 2)
    assert [(rank.dp_rank, rank.step, rank.steps_behind) for rank in training.ranks] == [(0, 3, 0), (1, 2, 1)]


def test_a_data_set_by_number_acknowledges_for_all_ranks(tmp_path):
    """Which rank asks for a number, only its sampler knows."""
    stream = ToyProducer(tmp_path)
    stream.append(8)
    LazyShardedDataset(tmp_path, num_packs=8, lanes=4).ack(1, "run-1")
    (training,) = StreamWatch(tmp_path).look().trainings
    assert (training.step, training.steps_there_are, training.ranks) == (1, 2, ())


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
    assert (training.packs, training.checkpoint, training.first_needed_shard) == (6, "checkpoint-5", 3)


def test_speed_says_when_a_training_ends_or_runs_dry(tmp_path, clock):
    """Two numbers that people plan their day by: of the last two checkpoints, whose times are in the stream."""
    stream = ToyProducer(tmp_path, lanes=4)
    for _ in range(4):
        stream.append(20)
    dataset = LazyShardedDataset(tmp_path, num_packs=800)
    dataset.ack(2, "run-1")
    assert StreamWatch(tmp_path).look().trainings[0].steps_per_second is None
    clock[0] += 16
    dataset.ack(10, "run-1")
    watch = StreamWatch(tmp_path)
    (training,) = watch.look().trainings
    assert (training.steps_behind, training.steps_per_second, training.seconds_ago) == (10, 0.5, 0)
    assert (training.eta_seconds, training.dry_seconds) == (None, None)  # how fast it grows is not known yet
    clock[0] += 20
    for _ in range(4):
        stream.append(5)
    status = watch.look()
    assert (status.packs_per_second, status.tokens_per_second, status.seconds_without_shard) == (1.0, 4.0, 0.0)
    (training,) = status.trainings
    assert (training.steps_behind, training.dry_seconds, training.seconds_ago) == (15, 15 / (0.5 - 1 / 4), 20)
    clock[0] += 5
    stream.close()
    (training,) = watch.look().trainings
    assert (training.eta_seconds, training.dry_seconds) == (30, None)
    clock[0] -= 3600  # a clock that jumps back gives no speed, and no time before now
    dataset.ack(12, "run-1")
    (training,) = StreamWatch(tmp_path).look().trainings
    assert (training.steps_per_second, training.eta_seconds, training.seconds_ago) == (None, None, 0)
