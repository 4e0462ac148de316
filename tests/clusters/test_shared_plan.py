"""One builder, many ranks: equal plans, epochs that change together, errors that reach everybody."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from brimful import Plan, PlanSettings
from brimful.base.progress import Progress, make_progress
from brimful.clusters import Ranks, SharedPlan, Waiting, epoch_plans, shared_plan
from brimful.clusters.epoch_plans import Builder, DocumentWriter, read_document
from brimful.errors import BuildFailedError, CorruptFileError, SettingsError, TaskFailedError
from brimful.testing.toys import toy_chat_encoder
from tests.clusters.builds import QUICK, Build, expected, in_threads
from tests.clusters.unlike_rank import CASES

CHATS = [{"prompt": f"{number}+{number}?", "completion": str(2 * number)} for number in range(40)]
WORLD = 4


@pytest.fixture(autouse=True)
def _no_lingering(monkeypatch):
    monkeypatch.setattr("brimful.clusters.epoch_plans._LINGER_SECONDS", 0.5)


def make(rank, build, folder, *, world_size=WORLD, directory=None, **options):
    """The plan of one rank."""
    options = {"waiting": QUICK, **options}
    return SharedPlan(build, folder / "jobs" / "a.json", Ranks(rank, world_size), directory or folder, **options)


def make_all(build, folder, world_size=WORLD, **options):
    functions = [partial(make, rank, build, folder, world_size=world_size, **options) for rank in range(world_size)]
    return in_threads(*functions)


def closed(plans):
    stack = contextlib.ExitStack()
    for plan in plans:
        if isinstance(plan, SharedPlan):
            stack.callback(plan.close)
    return stack


def test_every_rank_has_the_plan_of_rank_0_and_it_was_built_once(tmp_path):
    """Without it each rank of 512 would measure, or they would train on different packs."""
    build = Build(tmp_path, seconds=0.2)
    plans = make_all(build, tmp_path, ahead=False)
    with closed(plans):
        assert [plan.plan.fingerprint for plan in plans] == [expected(0)] * WORLD
        assert [plan.metadata.fingerprint for plan in plans] == [plans[0].metadata.fingerprint] * WORLD
        assert build.epochs == [0]
        metadata = plans[3].metadata
        assert [metadata.indices.row(i).tolist() for i in range(3)] == [
            [segment.sample_id for segment in plans[0].plan.pack(i)] for i in range(3)
        ]
        assert metadata.lengths.tolist() == plans[0].plan.pack_tokens.tolist()
        assert (len(metadata), set(metadata.group.tolist()), metadata.group_domains) == (
            len(plans[0].plan),
            {0},
            ("all",),
        )


def test_a_build_longer_than_every_waiting_time_is_waited_for(tmp_path):
    """What ends a wait is the end of rank 0, not its length: no timeout of any length would be right for every data set."""
    waiting = Waiting(poll_seconds=0.02, arrive_seconds=1.0, see_seconds=0.3)
    plans = make_all(Build(tmp_path, seconds=1.5), tmp_path, ahead=False, waiting=waiting)
    with closed(plans):
        assert [plan.plan.fingerprint for plan in plans] == [expected(0)] * WORLD


def test_followers_say_for_whom_they_wait(tmp_path, monkeypatch):
    """An hour of silence on every rank but one is taken for a hang, and killed."""
    monkeypatch.setattr("brimful.clusters.epoch_plans._LOG_SECONDS", 0.1)
    stream = io.StringIO()
    plans = in_threads(
        lambda: [time.sleep(0.2), make(0, Build(tmp_path, seconds=0.6), tmp_path, world_size=2, ahead=False)][1],
        lambda: make(1, None, tmp_path, world_size=2, progress=make_progress("lines", stream)),
    )
    with closed(plans):
        lines = stream.getvalue().splitlines()
        start = "rank 1 waits for the plan of epoch 0 by rank 0"
        assert lines[0] == f"{start} (which has not come yet) for 0:00"
        assert lines[-1][:-1] == f"{start} ({socket.gethostname()}, process {os.getpid()}) for 0:0"


def test_an_error_of_rank_0_is_raised_everywhere_with_its_class_and_traceback(tmp_path):
    """A follower that only times out points to the wrong log."""

    def fault(epoch):
        raise ZeroDivisionError("row 7\nhas no tokens")

    results = make_all(Build(tmp_path, fault=fault), tmp_path)
    assert isinstance(results[0], ZeroDivisionError)
    for rank, error in enumerate(results[1:], start=1):
        assert isinstance(error, BuildFailedError)
        assert str(error) == f"rank {rank}: rank 0 could not plan epoch 0: ZeroDivisionError: row 7 has no tokens"
        assert error.error_class == "ZeroDivisionError"
        assert "in fault" in error.build_traceback


def test_all_ranks_change_epochs_together_and_each_is_built_once_ahead(tmp_path):
    """A stale plan on one rank silently trains samples twice."""
    build = Build(tmp_path, seconds=0.1)
    plans = make_all(build, tmp_path, num_epochs=4)
    with closed(plans):
        for epoch in range(1, 4):
            while len(build.epochs) <= epoch:  # built while the last one is served, before anybody asks
                time.sleep(0.01)
            assert [plan.epoch for plan in plans] == [epoch - 1] * WORLD
            in_threads(*[partial(plan.set_epoch, epoch) for plan in plans])
            assert [plan.plan.fingerprint for plan in plans] == [expected(epoch)] * WORLD
            assert [plan.plan.settings.epoch for plan in plans] == [epoch] * WORLD
        plans[2].set_epoch(3)
        assert build.epochs == [0, 1, 2, 3]
        assert len({plan.identity for plan in plans}) == 1


def test_membership_that_is_kept_is_never_built_again(tmp_path):
    build = Build(tmp_path)
    plans = make_all(build, tmp_path, replan=False)
    with closed(plans):
        in_threads(*[partial(plan.set_epoch, 7) for plan in plans])
        assert [(plan.epoch, plan.plan.fingerprint) for plan in plans] == [(7, expected(0))] * WORLD
        assert build.epochs == [0]
        (tmp_path / "jobs" / "a.json").unlink()
        plans[1].set_epoch(8)
        assert plans[1].epoch == 8, "without a word of rank 0"


def test_an_error_of_a_later_epoch_leaves_the_plan_that_is_served(tmp_path):
    """It is made in the background: its error must not vanish with a thread, nor take the epoch that trains."""

    def fault(epoch):
        if epoch == 1:
            raise MemoryError("no room")

    plans = make_all(Build(tmp_path, fault=fault), tmp_path)
    with closed(plans):
        errors = in_threads(*[partial(plan.set_epoch, 1) for plan in plans])
        assert [type(error) for error in errors] == [MemoryError] + [BuildFailedError] * (WORLD - 1)
        assert [(plan.epoch, plan.plan.fingerprint) for plan in plans] == [(0, expected(0))] * WORLD


def test_a_run_that_goes_on_in_epoch_5_builds_that_one_alone(tmp_path):
    build = Build(tmp_path)
    plans = make_all(build, tmp_path, epoch=5, num_epochs=6)
    with closed(plans):
        assert build.epochs == [5]
        assert [plan.plan.fingerprint for plan in plans] == [expected(5)] * WORLD


def test_what_an_earlier_job_left_is_not_believed(tmp_path):
    """Followers that start first would train on the old plan, with rank 0 on the new one."""
    with closed(make_all(Build(tmp_path), tmp_path, ahead=False)):
        pass
    later = Build(tmp_path, capacity=200)
    plans = in_threads(
        lambda: [time.sleep(0.3), make(0, later, tmp_path, world_size=2, ahead=False)][1],
        lambda: make(1, None, tmp_path, world_size=2),
    )
    with closed(plans):
        assert [plan.plan.capacity for plan in plans] == [200, 200]


KILLED = """
import os, sys, time
from pathlib import Path
from brimful.clusters import Ranks, SharedPlan
from tests.clusters.builds import QUICK, Build, die
folder, fault = Path(sys.argv[1]), {"die": die, "stop": lambda _: time.sleep(600)}[sys.argv[2]]
if sys.argv[2] == "stop" and os.fork() == 0:
    time.sleep(600)
SharedPlan(Build(folder, 0.3, fault), folder / "jobs" / "a.json", Ranks(0, 2), folder, waiting=QUICK)
"""


def test_a_rank_0_that_is_killed_is_missed_at_once(tmp_path):
    """SIGKILL, as the kernel sends when memory runs out: no handler runs, and nothing is told."""
    process = subprocess.Popen([sys.executable, "-c", KILLED, str(tmp_path), "die"])
    with pytest.raises(TaskFailedError, match=r"rank 1: rank 0 \(.*\) is gone: its process has ended before the plan"):
        make(1, None, tmp_path, world_size=2, waiting=Waiting(poll_seconds=0.02, arrive_seconds=30))
    process.wait()


def test_a_process_that_rank_0_forked_holds_no_lock(tmp_path):
    """Workers of a loader live on for a moment, or for hours: then rank 0 would not be missed."""
    document = DocumentWriter(tmp_path / "jobs" / "a.json")
    document.write({"epochs": {}})
    pid = os.fork()
    if pid == 0:
        time.sleep(60)
        os._exit(0)
    document.close()
    time.sleep(0.05)
    assert not read_document(tmp_path / "jobs" / "a.json").is_live
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def test_a_document_that_is_replaced_again_and_again_is_always_live(tmp_path):
    """Between two documents a reader may hold the one whose lock was just given back."""
    document = DocumentWriter(tmp_path / "a.json")
    document.write({"number": 0})
    stop = []

    def write():
        number = 0
        while not stop:
            number += 1
            document.write({"number": number})

    def read():
        try:
            seen = [read_document(tmp_path / "a.json") for _ in range(2_000)]
        finally:
            stop.append(True)
        return seen

    _, seen = in_threads(write, read)
    numbers = [one.values["number"] for one in seen if one.is_live]
    assert len(numbers) == 2_000
    assert numbers == sorted(numbers)


def test_a_rank_0_that_never_comes_is_named(tmp_path):
    """Without a line for each look of every rank, which would fill the log of a job."""
    waiting, stream = Waiting(poll_seconds=0.02, arrive_seconds=0.2), io.StringIO()
    with pytest.raises(TaskFailedError, match="has not begun to plan"):
        make(1, None, tmp_path, world_size=2, waiting=waiting, progress=make_progress("lines", stream))
    assert stream.getvalue() == ""


def test_each_wait_has_its_seconds(tmp_path, monkeypatch):
    """By a clock: for rank 0 to come, for its file to be seen, and between two lines; looks are half a second apart."""
    clock = SimpleNamespace(now=3.0)
    clock.monotonic = lambda: clock.now

    def sleep(seconds):
        clock.now += seconds

    clock.sleep = sleep
    monkeypatch.setattr(epoch_plans, "time", clock)
    progress, lines = Progress(), []
    monkeypatch.setattr(progress, "say", lines.append)
    waiting = Waiting(arrive_seconds=25, see_seconds=7)
    path = tmp_path / "jobs" / "a.json"
    follower = epoch_plans.Follower(path, Ranks(1, 2), tmp_path, progress=progress, waiting=waiting)
    with pytest.raises(TaskFailedError, match=r"rank 1 waited 26 s and rank 0 has not begun .*arrive_seconds=25"):
        follower.get(3)
    assert clock.now == 28.5
    assert [line[-4:] for line in lines] == ["0:10", "0:20"]
    writer = DocumentWriter(path)
    writer.write({"epochs": {"3": {"plan": "0123456789", "files": ["plans/a.arrow"], "identity": "", "arguments": {}}}})
    with pytest.raises(SettingsError, match=r"rank 1 does not see .*plans/a\.arrow, the plan 0123456 of rank 0"):
        follower.get(3)
    assert clock.now == 36
    writer.close()


def test_plans_lie_in_the_cache_by_default(tmp_path):
    with share(tmp_path, directory=None, cache_dir=tmp_path / "cache") as shared:
        assert Path(shared.plan.path).parent == tmp_path / "cache" / "shared" / "plans"


def test_a_plan_that_a_node_sees_later_is_waited_for(tmp_path):
    """A network file system shows a new file to other nodes after seconds."""
    late = tmp_path / "late"

    def show():
        while not (document := read_document(tmp_path / "jobs" / "a.json")) or not document.values["epochs"]:
            time.sleep(0.01)
        time.sleep(0.2)
        shutil.copytree(tmp_path / "plans", late / "plans")

    first, second, _ = in_threads(
        lambda: make(0, Build(tmp_path), tmp_path, world_size=2, ahead=False),
        lambda: make(1, None, tmp_path, world_size=2, directory=late, waiting=Waiting(poll_seconds=0.02)),
        show,
    )
    with closed([first, second]):
        assert [plan.plan.fingerprint for plan in (first, second)] == [expected(0)] * 2


def test_a_directory_that_is_not_shared_is_named(tmp_path):
    results = in_threads(
        lambda: make(0, Build(tmp_path), tmp_path, world_size=2, ahead=False),
        lambda: make(1, None, tmp_path, world_size=2, directory=tmp_path / "elsewhere"),
    )
    with closed(results), pytest.raises(SettingsError, match="directory must be one that all nodes share"):
        raise results[1]


def test_a_file_system_without_locks_is_named(tmp_path, monkeypatch):
    """There it could not be told a rank 0 that works from one that is gone."""
    monkeypatch.setattr("brimful.clusters.epoch_plans.try_lock", lambda _: False)
    with pytest.raises(SettingsError, match="is on a file system without locks"):
        make(0, Build(tmp_path), tmp_path, world_size=2)
    assert not list((tmp_path / "jobs").glob("*.json*"))


def test_two_jobs_of_one_name_do_not_mix(tmp_path):
    """Two builders in one place would answer each other's followers."""
    epoch_plans._calls.clear()
    first = share(tmp_path, rank=0, world_size=2, job="same")
    epoch_plans._calls.clear()  # the second job is another process, which counts from 0
    with pytest.raises(SettingsError, match=r"in use by another job of that name .* give each its own job"):
        share(tmp_path, rank=0, world_size=2, job="same")
    epoch_plans._calls.clear()
    with closed([first, share(tmp_path, rank=0, world_size=2, job="other")]):
        pass


def share(folder, **options):
    defaults = {"directory": folder, "progress": Progress(), "waiting": QUICK, "ahead": False}
    return shared_plan(CHATS, toy_chat_encoder(), PlanSettings(capacity=64), **{**defaults, **options})


def test_a_plan_that_is_there_is_not_made_again(tmp_path, monkeypatch):
    """A sweep of eight jobs on one data set plans once; so does a job that starts again."""
    with share(tmp_path) as first:
        pass
    monkeypatch.setattr("brimful.clusters.source_plans.plan_with", lambda *_, **__: pytest.fail("planned again"))
    with share(tmp_path) as second:
        assert second.plan.fingerprint == first.plan.fingerprint


def test_a_damaged_plan_is_made_again(tmp_path):
    with share(tmp_path) as first:
        path = Path(first.plan.path)
        fingerprint = first.plan.fingerprint
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.unlink()  # the first plan is mapped from it
    path.write_bytes(data)
    with share(tmp_path) as second:
        assert second.plan.fingerprint == fingerprint
        second.plan.check_fingerprint()


def test_the_name_of_a_plan_follows_everything_that_decides_it(tmp_path):
    """A name that leaves something out gives a job the plan of another."""
    names = set()
    for options in ({}, {"epoch": 1}, {"groups": [0, 0] + [-1] * 38}, {"domains": ["a", "b"] * 20}):
        with share(tmp_path, **options) as shared:
            names.add(shared.plan.path)
    assert len(names) == 4


def test_domains_of_packs_are_the_same_on_a_rank_that_only_read_them(tmp_path):
    domains = ["math" if number % 3 else "code" for number in range(40)]

    def rank_of_two(rank):
        epoch_plans._calls.clear()  # each rank is a process of its own, which counts its calls from 0
        return share(tmp_path, rank=rank, world_size=2, job="x", domains=domains if rank == 0 else None)

    plans = [rank_of_two(0), rank_of_two(1)]
    with closed(plans):
        metadata = [plan.metadata for plan in plans]
        assert metadata[1].group_domains == ("code", "math")
        assert metadata[0].group.tolist() == metadata[1].group.tolist()
        assert metadata[0].fingerprint == metadata[1].fingerprint
        assert len(set(metadata[1].group.tolist())) > 1


def test_settings_with_an_epoch_are_refused(tmp_path):
    with pytest.raises(SettingsError, match="leave it out there"):
        shared_plan(CHATS, toy_chat_encoder(), PlanSettings(capacity=64, epoch=2), directory=tmp_path)


def test_samples_are_measured_with_what_they_share(tmp_path):
    """Without it rank 0 refuses to plan what it measured itself."""
    rows = [{"text": "a" * 70 + letter} for letter in "bcd"]
    settings = PlanSettings(capacity=128, share="prefixes")
    with shared_plan(rows, toy_chat_encoder(), settings, directory=tmp_path) as shared:
        assert shared.dataset()[0].num_samples == 3
        assert len(shared.dataset()[0]) == 73


def test_half_a_document_is_no_document(tmp_path):
    """Some file systems show a file before all of its bytes; what is none at all has no writer."""
    path = tmp_path / "a.json"
    assert read_document(path) is None
    for data in (b'{"epochs": {"0"', b"", b"[]", b"{}"):
        path.write_bytes(data)
        assert read_document(path) is None
    path.unlink()
    path.mkdir()
    with pytest.raises(CorruptFileError):
        read_document(path)


def test_each_plan_of_a_job_has_a_document_of_its_own(monkeypatch, tmp_path):
    """Equal on its ranks, which make their plans in one order; another job's, name's or world's is another."""

    def documents(job="a", name="train", world_size=2):
        epoch_plans._calls.clear()
        return [epoch_plans.document_of(tmp_path, job, name, world_size) for _ in range(3)]

    variants: list[dict[str, Any]] = [{}, {"job": "b"}, {"name": "val"}, {"world_size": 3}, {"job": None}]
    assert [documents(**variant) for variant in variants] == [documents(**variant) for variant in variants]
    assert len({path for variant in variants for path in documents(**variant)}) == 15
    for variable in ("TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "MASTER_ADDR", "MASTER_PORT"):
        before = documents(job=None)
        monkeypatch.setenv(variable, "another")
        assert not set(before) & set(documents(job=None))


def test_the_latest_epochs_are_told(tmp_path):
    """By when they were asked for; an earlier one is built again, and told last."""
    build = Build(tmp_path)
    builder = Builder(build, tmp_path / "jobs" / "a.json", progress=Progress())
    for epoch in (0, 1, 2, 3, 4, 4, 1, 0):
        assert builder.get(epoch).plan.settings.epoch == epoch
    assert build.epochs == [0, 1, 2, 3, 4, 0]
    assert list(read_document(tmp_path / "jobs" / "a.json").values["epochs"]) == ["2", "3", "4", "0"]
    builder.close()


@pytest.mark.parametrize(("error", "waits"), [(ValueError("bad"), [0.5]), (KeyboardInterrupt(), [])])
@pytest.mark.parametrize("has_others", [True, False])
def test_a_failed_builder_stays_for_those_who_wait(tmp_path, monkeypatch, error, waits, has_others):
    """Not after Ctrl-C, which has stopped them too, and not alone; a full disk hides no error of the build."""
    slept = []
    monkeypatch.setattr("brimful.clusters.epoch_plans.time.sleep", slept.append)

    def build(epoch, progress):
        raise error

    builder = Builder(build, tmp_path / "jobs" / "a.json" if has_others else None, progress=Progress())
    with pytest.raises(type(error)):
        builder.get(0)
    assert slept == (waits if has_others else [])

    def full(results):
        raise OSError("no space left")

    monkeypatch.setattr(builder, "_publish", full)
    with pytest.raises(type(error)):
        builder.get(1)
    monkeypatch.setattr(builder, "_build", Build(tmp_path))
    with pytest.raises(OSError, match="no space left"):
        builder.get(2)
    builder.close()


def test_a_plan_opens_without_reading_its_arrays(tmp_path):
    """Ranks map the file: a file checked by its name may lie on a server, and be a gigabyte."""
    plans = make_all(Build(tmp_path), tmp_path, world_size=2, ahead=False)
    with closed(plans):
        assert isinstance(plans[1].plan, Plan)
        assert not plans[1].plan.sample_ids.flags.owndata


def test_a_rank_with_other_arguments_stops_and_names_them(tmp_path):
    """Two real processes: without it a stale copy of the data on one node is trained in packs that were made for another."""
    command = [sys.executable, "-m", "tests.clusters.unlike_rank"]
    ranks = [subprocess.Popen([*command, str(rank), str(tmp_path)]) for rank in range(2)]
    assert [rank.wait(120) for rank in ranks] == [0, 0]
    first, second = (json.loads((tmp_path / f"seen {rank}.json").read_text()) for rank in range(2))
    assert first == dict.fromkeys(CASES, [97] * 3)
    assert second.pop("nothing") == [97] * 3
    paths = [tmp_path / f"node {rank}" / "chats.jsonl" for rank in range(2)]
    start = "PlanMismatchError: rank 1 has different arguments from rank 0, which made the plan: "
    source = second.pop("source")
    assert re.fullmatch(rf"{start}source \({paths[0]} \w{{7}} on rank 0, {paths[1]} \w{{7}} here\)", source)
    assert second == {
        "encoder": start + "encoder version (0 on rank 0, 1 here)",
        "capacity": start + "capacity (64 on rank 0, 96 here)",
        "seed": start + "seed (0 on rank 0, 1 here)",
    }
