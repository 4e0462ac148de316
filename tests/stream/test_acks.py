"""What a checkpoint needs stays, and the rest goes."""

from __future__ import annotations

import contextlib
import itertools
import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.base.blobs import open_blob_store
from brimful.errors import CorruptFileError, SettingsError, ShardExpiredError, StateError
from brimful.stream import StreamLoader, mark_completed, remove_acknowledged
from brimful.stream.acks import Acks, expired_below
from brimful.stream.assignment import Assignment, StreamOrder
from brimful.testing.toys import ToyProducer, toy_records, toy_stream


def ids(batch):
    return [int(pack.sample_ids[0]) for pack in batch]


def shards(directory):
    return sorted(int(path.name[:8]) for path in (directory / "shards").iterdir())


def step_to(loader, num_steps):
    return [ids(batch) for batch in itertools.islice(loader, num_steps)]


@given(st.lists(st.integers(1, 4), max_size=8), st.integers(1, 4), st.integers(0, 30), st.integers(0, 8))
def test_nothing_below_the_frontier_is_asked_for_again(packs, lanes, position, num_known):
    """A shard that is removed too early is a hole in every later resume, also of packs that come later; one that is kept for
    nothing fills the disk."""
    for assignment in Assignment:
        known = StreamOrder(assignment, toy_records(packs)[:num_known], lanes)
        frontier, step = known.frontier(position), position - position % lanes
        kept = [found[0].seq for found in map(known.find, range(step, 60)) if found]
        assert frontier == min([*kept, min(num_known, len(packs))])
        later = StreamOrder(assignment, toy_records(packs), lanes)
        needed = [found[0].seq for found in map(later.find, range(position - position % lanes, 60)) if found]
        assert all(seq >= frontier for seq in needed)


def test_shards_go_when_no_group_needs_them(tmp_path):
    """C5: a rollback within the kept checkpoints reads on, and one before them is told so."""
    producer = ToyProducer(tmp_path, lanes=2)
    for _ in range(8):
        producer.append(2)
    loader = StreamLoader(tmp_path)
    states, served = [], []
    for _ in range(3):
        served += step_to(loader, 2)
        loader.ack("model", checkpoint=f"step {len(served)}")
        states.append(loader.state_dict())
    assert remove_acknowledged(tmp_path, ["model"], keep=2) == 4
    assert shards(tmp_path) == [4, 5, 6, 7]
    assert remove_acknowledged(tmp_path, ["model"], keep=3) == 4, "what is gone stays gone"
    for state, done in zip(states[1:], (4, 6), strict=True):
        rest = StreamLoader(tmp_path, timeout=0)
        rest.load_state_dict(state)
        assert step_to(rest, 8 - done) == [[8, 10], [9, 11], [12, 14], [13, 15]][done - 4 :]
    for skips in ("error", "skip"):
        old = StreamLoader(tmp_path, on_corrupt=skips)
        old.load_state_dict(states[0])
        with pytest.raises(
            ShardExpiredError, match=r"shard 2 was removed, like all below 4, after later checkpoints were"
        ):
            next(iter(old))


def test_a_group_that_has_not_acknowledged_enough_keeps_everything(tmp_path):
    """Two trainings on one stream: the slow one decides, and one that is not named would lose its data."""
    toy_stream(tmp_path, [1] * 6)
    fast, slow = StreamLoader(tmp_path), StreamLoader(tmp_path)
    for _ in range(4):
        step_to(fast, 1)
        fast.ack("fast")
    assert remove_acknowledged(tmp_path, ["fast", "slow"], keep=1) == 0
    step_to(slow, 1)
    slow.ack("slow")
    assert remove_acknowledged(tmp_path, ["fast", "slow"], keep=1) == 1
    with pytest.raises(SettingsError, match="name the groups"):
        remove_acknowledged(tmp_path, [])
    assert shards(tmp_path) == [1, 2, 3, 4, 5]


def test_a_further_pass_keeps_everything(tmp_path):
    """Shards that the next pass reads again must not go after the first."""
    toy_stream(tmp_path, [1] * 4)
    loader = StreamLoader(tmp_path, repeat=True)
    step_to(loader, 3)
    loader.ack("model")
    assert remove_acknowledged(tmp_path, ["model"], keep=1) == 0
    later = StreamLoader(tmp_path)
    later.set_epoch(1)
    step_to(later, 2)
    later.ack("later")
    assert remove_acknowledged(tmp_path, ["later"], keep=1) == 0


def test_the_same_twice_is_once_and_another_run_is_refused(tmp_path):
    """C1, C2: after a kill the ack is written again; a run with other batches must not move the frontier of this one."""
    toy_stream(tmp_path, [1] * 8)
    loader, again = StreamLoader(tmp_path, lanes=2), StreamLoader(tmp_path, lanes=2)
    for run in (loader, again):
        step_to(run, 2)
        run.ack("model", checkpoint=f"run {id(run)}")
    other = StreamLoader(tmp_path, lanes=4)
    step_to(other, 1)
    with pytest.raises(
        StateError, match=r'was acknowledged with different values: lanes \(2 there, 4 here\).*group="model": give'
    ):
        other.ack("model")
    acks = Acks(open_blob_store(tmp_path), "model")
    assert acks.positions() == [4]
    part = StreamLoader(tmp_path, lanes=2, packs_per_micro_batch=1)
    step_to(part, 1)
    with pytest.raises(StateError, match="ack within a step"):
        part.ack("model")
    with pytest.raises(SettingsError, match="must be a name of letters"):
        loader.ack("../model")
    (tmp_path / "acks" / "model" / "000000000000004.json").write_text("{}")
    with pytest.raises(CorruptFileError, match="is damaged"):
        acks.read(4)


def test_a_rank_that_knows_less_of_the_log_acknowledges_the_same(tmp_path):
    """A run that comes back may know more shards than the rank that acknowledged before the kill: it is the same run."""
    acks = Acks(open_blob_store(tmp_path), "model")
    acks.write({"packs_delivered": 4, "stream": "a", "frontier": 1})
    acks.write({"packs_delivered": 4, "stream": "a", "frontier": 2})
    assert acks.read(4)[0]["frontier"] == 1
    with pytest.raises(StateError, match=r"stream \(a there, b here\)"):
        acks.write({"packs_delivered": 4, "stream": "b", "frontier": 1})


@settings(max_examples=10)
@given(st.integers(1, 3), st.integers(0, 6))
def test_a_removal_that_was_killed_goes_on(tmp_path_factory, keep, num_deleted):
    """Killed between two deletions the call must finish, and never pass the frontier."""
    directory = tmp_path_factory.mktemp("stream")
    toy_stream(directory, [1] * 6)
    loader = StreamLoader(directory)
    for _ in range(5):
        step_to(loader, 1)
        loader.ack("model")

    class Killed(BaseException):
        pass

    deleted = []

    def delete(self, key):
        deleted.append(key)
        if len(deleted) > num_deleted:
            raise Killed

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr("brimful.base.blobs.local.LocalBlobStore.delete", delete)
        with contextlib.suppress(Killed):
            remove_acknowledged(directory, ["model"], keep=keep)
    below = remove_acknowledged(directory, ["model"], keep=keep)
    assert below == expired_below(open_blob_store(directory)) == 6 - keep
    assert shards(directory) == list(range(below, 6))


def test_completed_files_follow_from_the_acks(tmp_path):
    """Seed 000 wrote them when a chunk was read: here training on it is durable first, for every group."""
    toy_stream(tmp_path, [1] * 4)
    assert mark_completed(tmp_path, ["fast", "slow"]) == 0
    fast, slow = StreamLoader(tmp_path), StreamLoader(tmp_path)
    step_to(fast, 3)
    assert mark_completed(tmp_path, ["fast"]) == 0, "what was only read is not complete"
    fast.ack("fast")
    step_to(slow, 1)
    slow.ack("slow")
    assert mark_completed(tmp_path, ["fast", "slow"]) == mark_completed(tmp_path, ["fast", "slow"]) == 1
    (marker,) = (tmp_path / "shards").glob("*.completed")
    assert (marker.read_bytes(), marker.name[:8], marker.name[-16:]) == (b"", "00000000", ".arrow.completed")
    assert mark_completed(tmp_path, ["fast"]) == 3
    assert remove_acknowledged(tmp_path, ["fast"], keep=1) == 3
    assert len(list((tmp_path / "shards").glob("*.completed"))) == 3, "they stay as a record"
    with pytest.raises(SettingsError, match="name the groups"):
        mark_completed(tmp_path, [])


@pytest.mark.parametrize("assign", ["lane", "pack"])
@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize("packs", [[1], [4], [2, 1, 1]])
def test_every_position_that_a_log_reaches_is_in_it_and_the_next_step_is_not(tmp_path, assign, lanes, packs):
    """By lanes one shard may take as many steps as it has packs: refused, nothing would be removed ever again."""
    toy_stream(tmp_path, packs)
    loader = StreamLoader(tmp_path, lanes=lanes, assign=assign)
    num_steps = len(step_to(loader, 9))
    loader.ack("run")
    assert remove_acknowledged(tmp_path, ["run"], keep=1) == len(packs)
    acks = Acks(open_blob_store(tmp_path), "run")
    most = lanes * (sum(packs) if assign == "lane" else -(-sum(packs) // lanes))
    assert most >= lanes * num_steps
    ack, records = {**acks.read(lanes * num_steps)[0], "frontier": 1}, toy_records(packs)
    if (lanes, assign) == (1, "pack"):
        del ack["lanes"], ack["assign"]  # one that does not say so is of one lane
    for position, is_reached in ((most, True), (most + lanes, False)):
        other = Acks(open_blob_store(tmp_path), f"planted-{position}")
        other.write({**ack, "packs_delivered": position})
        with contextlib.nullcontext() if is_reached else pytest.raises(StateError, match="is ahead of the log"):
            other.check_in_log(position, records)
        # Of all kept positions the last is looked at.
        with contextlib.nullcontext() if is_reached else pytest.raises(StateError, match="is ahead of the log"):
            other.write({"packs_delivered": 0, "frontier": 0})
            remove_acknowledged(tmp_path, [other.group], keep=2)
    acks.write({"packs_delivered": 0, "frontier": len(packs) + 1})
    with pytest.raises(StateError, match="is ahead of the log"):
        acks.check_in_log(0, records)


def test_each_of_several_ranks_says_where_it_is(tmp_path):
    """A rank that lags is seen by its number; a rank that is alone needs no file of its own."""
    toy_stream(tmp_path, [2] * 4)
    acks = Acks(open_blob_store(tmp_path), "run")
    loader = StreamLoader(tmp_path)
    step_to(loader, 1)
    loader.ack("run")
    assert acks.ranks() == {}
    for rank in range(2):
        loader = StreamLoader(tmp_path, dp_rank=rank, dp_world_size=2, lanes=2)
        step_to(loader, rank + 1)
        loader.ack("run")
    acks.write_rank(123_456, {"packs_delivered": 6, "skipped": 1})
    assert acks.ranks() == {
        rank: {"packs_delivered": position, "skipped": skipped}
        for rank, position, skipped in ((0, 2, 0), (1, 4, 0), (123_456, 6, 1))
    }


@pytest.mark.parametrize(("state", "is_removed"), [({"producer": "one"}, True), (None, False)])
def test_media_go_with_the_shard_of_a_growing_stream_alone(tmp_path, state, is_removed):
    """Media of a planned store may serve later shards."""
    toy_stream(tmp_path, [1, 1])
    for path in sorted((tmp_path / "log").iterdir())[:2]:
        media = {"file": f"media/{path.stem}.tar"} if path.stem[-1] == "0" else None
        path.write_text(json.dumps({**json.loads(path.read_text()), "state": state, "media": media}))
    store = open_blob_store(tmp_path)
    store.put_atomic("media/000000000000.tar", b"pictures")
    loader = StreamLoader(tmp_path)
    step_to(loader, 2)
    loader.ack("run")
    assert remove_acknowledged(tmp_path, ["run"], keep=1) == 2
    assert (store.size("media/000000000000.tar") is None) == is_removed
