"""A log that was restored from an older copy is shorter than states and acknowledgments: each says so, and nothing waits."""

from __future__ import annotations

import json
import os

import pytest

from brimful.base.blobs import open_blob_store
from brimful.errors import CorruptFileError, StateError
from brimful.stream import StreamLoader
from brimful.stream.acks import Acks, expired_below, mark_completed, remove_acknowledged
from brimful.testing.toys import toy_stream
from tests.cli.bad_input.tools import done, refused

SHARDS = [3, 2, 1, 4, 2, 2]


def _served(loader):
    return [[pack.sample_ids.tolist() for pack in batch] for batch in loader]


def _cut(stream, count):
    """Leave the first records of a log, and no end."""
    for path in (stream / "log").iterdir():
        if int(path.stem) >= count:
            path.unlink()


@pytest.mark.parametrize(("assign", "lanes", "later_lanes"), [("lane", 2, 2), ("pack", 2, 2), ("pack", 4, 2)])
def test_a_state_resumes_where_the_log_reaches_it_and_is_refused_where_it_does_not(
    tmp_path, assign, lanes, later_lanes
):
    """Without it a run waits for a producer that has nothing to write, or ends as if it were done."""
    toy_stream(tmp_path / "whole", SHARDS)
    loader = StreamLoader(tmp_path / "whole", lanes=lanes, assign=assign)
    states, iterator = [loader.state_dict()], iter(loader)
    for _ in iterator:
        states.append(loader.state_dict())
    num_refused = 0
    for count in range(len(SHARDS) + 1):
        directory = tmp_path / str(count)
        toy_stream(directory, SHARDS)
        _cut(directory, count)
        os.link(tmp_path / "whole" / "stream.json", directory / "same")
        os.replace(directory / "same", directory / "stream.json")
        packs = sum(SHARDS[:count])
        reached = (
            max((sum(SHARDS[:count][lane::lanes]) for lane in range(lanes)), default=0)
            if assign == "lane"
            else -(-packs // lanes)
        )
        for step, state in enumerate(states):
            later = StreamLoader(directory, lanes=later_lanes, assign=assign, timeout=0)
            if step <= reached:
                later.load_state_dict(state)
                assert later.state_dict()["step"] * later_lanes == step * lanes
                continue
            num_refused += 1
            with pytest.raises(
                StateError,
                match=rf"the state is after step {step}, and the log ends with step {reached}: it is shorter",
            ):
                later.load_state_dict(state)
    assert num_refused > 10


@pytest.mark.parametrize("done", [1, 2, 3])
def test_a_step_that_was_begun_counts_as_one_that_the_log_reaches(tmp_path, done):
    """The packs before the state are then gone from the log, and other packs would take their places."""
    toy_stream(tmp_path, [2] * 3)
    loader = StreamLoader(tmp_path, lanes=2, packs_per_micro_batch=1)
    for _ in range(2 * done - 1):
        next(iter(loader))
    state = loader.state_dict()
    assert (state["step"], state["places"]) == (done - 1, 1)
    _cut(tmp_path, done)
    StreamLoader(tmp_path, lanes=2, packs_per_micro_batch=1).load_state_dict(state)
    _cut(tmp_path, done - 1)
    with pytest.raises(StateError, match=f"the state is after step {done}, and the log ends with step {done - 1}:"):
        StreamLoader(tmp_path, lanes=2, packs_per_micro_batch=1).load_state_dict(state)


def test_a_record_that_a_mount_shows_late_is_awaited(tmp_path, monkeypatch):
    """Without it a rank on another machine is refused, because it looks half a second too early."""
    toy_stream(tmp_path, SHARDS)
    loader = StreamLoader(tmp_path, lanes=2)
    loader_states = [loader.state_dict() for _ in loader]
    record = tmp_path / "log" / "000000000000.json"
    record.rename(tmp_path / "late")
    late = StreamLoader(tmp_path, lanes=2)
    monkeypatch.setattr(
        "time.sleep", lambda _: os.path.exists(tmp_path / "late") and (tmp_path / "late").rename(record)
    )
    late.load_state_dict(loader_states[-1])
    assert late.state_dict() == loader_states[-1]


@pytest.mark.parametrize("count", range(len(SHARDS)))
def test_an_acknowledgment_ahead_of_the_log_removes_nothing(tmp_path, count):
    """Without it shards go that a later log, or another run, needs."""
    toy_stream(tmp_path, SHARDS)
    loader = StreamLoader(tmp_path)
    for _ in loader:
        pass
    loader.ack("run")
    _cut(tmp_path, count)
    before = sorted(os.listdir(tmp_path / "shards"))
    for call in (lambda: remove_acknowledged(tmp_path, ["run"], keep=1), lambda: mark_completed(tmp_path, ["run"])):
        with pytest.raises(
            StateError, match=r"acks/run/000000000000014.json is ahead of the log, which has .* nothing is removed"
        ):
            call()
    assert (sorted(os.listdir(tmp_path / "shards")), expired_below(open_blob_store(tmp_path))) == (before, 0)
    assert "ahead of the log, so no shard is removed" in done("inspect", tmp_path).out


def test_a_planted_acknowledgment_is_named_and_one_of_another_name_is_none(tmp_path):
    """Without it a position of a million of 14 packs removes all of them; a name without its zeros was a traceback."""
    toy_stream(tmp_path, SHARDS)
    loader = StreamLoader(tmp_path)
    next(iter(loader))
    loader.ack("run")
    acks, folder = Acks(open_blob_store(tmp_path), "run"), tmp_path / "acks" / "run"
    text = (folder / "000000000000001.json").read_text()
    (folder / "7.json").write_text(text)
    assert (acks.positions(), remove_acknowledged(tmp_path, ["run"], keep=1)) == ([1], 0)
    assert "ahead of the log" not in done("inspect", tmp_path).out
    planted = json.loads(text)
    planted["ack"] |= {"packs_delivered": 1_000_000, "frontier": 6}
    (folder / "000000001000000.json").write_text(json.dumps(planted))
    with pytest.raises(StateError, match="is ahead of the log, which has 14 packs in 6 shards"):
        remove_acknowledged(tmp_path, ["run"], keep=1)
    told = done("inspect", tmp_path).out
    assert "step 1,000,000 of 14" in told
    assert "ahead of the log" in told


@pytest.mark.parametrize("text", ["[]", "{}", "null", "1", "{", ""])
@pytest.mark.parametrize("name", ["acks/run/rank-000000.json", "acks/run/000000000000002.json", "expired.json"])
def test_a_document_of_another_form_is_one_line(tmp_path, name, text):
    """Without it ``inspect`` and the reader end in a traceback of Python."""
    toy_stream(tmp_path, SHARDS)
    for rank in (0, 1):
        loader = StreamLoader(tmp_path, dp_rank=rank, dp_world_size=2, lanes=2)
        next(iter(loader))
        loader.ack("run")
    (tmp_path / name).write_text(text)
    if name == "expired.json":
        with pytest.raises(CorruptFileError, match=r"expired\.json is damaged"):
            remove_acknowledged(tmp_path, ["run"], keep=1)
    else:
        assert f"{name} is damaged" in refused("inspect", tmp_path)
