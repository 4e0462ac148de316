"""Workers that die, on a cluster of this process: what is done again, what is refused, and that none is left over.

``test_ray.py`` asks the same of Ray itself, if installed.
"""

import logging
import os
import signal
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

from brimful.base.execute import Resources, as_execution, run_tasks
from brimful.base.progress import Progress
from brimful.clusters import ray
from brimful.errors import BadSampleError, SettingsError, TaskFailedError
from tests.clusters.fake_ray import FakeRay, FakeRayError


class _Block(int):
    """A task with a name of its own."""

    def __str__(self):
        return f"samples {10 * int(self)} to {10 * int(self) + 9}"


def _refuse_seven(counts, task):
    counts.append(int(task))
    if task == 7 and "refuse" in counts:
        raise BadSampleError("is seven", sample_id=7, where="data.jsonl:8")
    return 2 * task


@pytest.fixture
def run(monkeypatch, tmp_path):
    """A function that runs ten tasks on a fake cluster, and returns results and lines."""
    monkeypatch.setattr(os, "environ", dict(os.environ))
    monkeypatch.chdir(tmp_path)

    def run_ten(ray, *, num_proc=None, context=()):
        monkeypatch.setitem(sys.modules, "ray", ray)
        lines = []
        progress = Progress()
        monkeypatch.setattr(progress, "say", lines.append)
        tasks = run_tasks(
            _refuse_seven,
            [_Block(number) for number in range(10)],
            context=list(context),
            resources=Resources(num_proc, as_execution("ray"), progress),
            shared=[tmp_path],
        )
        try:
            return {int(task): result for task, result in tasks}, lines
        finally:
            assert set(ray.actors) == set(ray.killed), "a worker outlives its job"

    return run_ten


EXPECTED = {number: 2 * number for number in range(10)}


@pytest.mark.parametrize(("cores", "num_proc", "workers"), [(2, None, 2), (64, None, 10), (2, 3, 3), (0, 1, 1)])
def test_every_task_is_done_once_by_as_many_workers_as_there_are_cores(run, cores, num_proc, workers):
    ray = FakeRay(cores)
    assert run(ray, num_proc=num_proc) == (EXPECTED, [])
    assert len(ray.actors) == workers


@pytest.mark.parametrize("deaths", [{0: 1}, {9: 2}, {3: 2, 4: 1, 8: 2}])
def test_tasks_of_a_dead_worker_are_done_again(run, deaths):
    """Without it one machine that is taken away ends a job of a thousand, or rows are missing."""
    results, lines = run(FakeRay(2, deaths))
    assert results == EXPECTED
    assert lines
    assert lines[0].endswith("(The node ran low on memory); their tasks are run again")


def test_a_task_that_no_worker_outlives_is_refused_by_name(run):
    """Without it a row of a gigabyte kills workers for ever."""
    with pytest.raises(TaskFailedError) as caught:
        run(FakeRay(2, {6: 99}))
    assert str(caught.value).startswith("samples 60 to 69: 3 workers died at this task, the last on ")
    assert "(The node ran low on memory): most often memory ran out (try a smaller num_proc)" in str(caught.value)


def test_the_task_behind_a_deadly_one_is_not_blamed(run):
    """Each worker has two tasks; without it the second is counted as often as the first, which kills."""
    results, _ = run(FakeRay(1, {0: 2, 1: 2, 2: 2}))
    assert results == EXPECTED


def test_workers_that_never_start_end_the_job(run, monkeypatch):
    """Eight in a row, or one that Ray calls unable to begin."""
    ray = FakeRay(2, stillborn=99)
    with pytest.raises(TaskFailedError, match="workers on the Ray cluster die before they are ready"):
        run(ray)
    assert 8 <= len(ray.actors) <= 9
    assert run(FakeRay(2, stillborn=7))[0] == EXPECTED
    monkeypatch.setattr(FakeRayError, "actor_init_failed", True, raising=False)
    with pytest.raises(TaskFailedError, match="die before they are ready"):
        run(FakeRay(2, stillborn=1))


class _Flaky(FakeRay):
    """A cluster that starts the eighth worker, and the sixteenth."""

    def kill(self, actor, *, no_restart):
        super().kill(actor, no_restart=no_restart)
        if len(self.actors) == 8:
            self.stillborn = 7


def test_workers_that_start_at_last_end_the_count(run):
    """Seven in vain, one that dies at its task, and seven again are no reason to give up."""
    ray = _Flaky(1, {0: 1}, stillborn=7)
    assert run(ray)[0] == EXPECTED
    assert len(ray.actors) == 16


def test_an_error_of_a_task_is_raised_as_here(run):
    with pytest.raises(BadSampleError) as caught:
        run(FakeRay(2), context=["refuse"])
    assert str(caught.value) == "data.jsonl:8 (sample 7): is seven"
    assert "in _refuse_seven" in str(caught.value.__cause__)


def test_a_cluster_without_cores_and_no_workers_are_refused(run):
    with pytest.raises(SettingsError, match="the Ray cluster has no core for workers: give num_proc"):
        run(FakeRay(0))
    with pytest.raises(SettingsError, match="num_proc must be at least 1 and is 0"):
        run(FakeRay(2), num_proc=0)


class _Unconnected(FakeRay):
    """A library that is not connected yet, and takes over SIGTERM when it is."""

    error: Exception | None = None

    def is_initialized(self):
        return False

    def init(self, **options):
        assert options == {
            "address": "auto", "namespace": "brimful", "log_to_driver": False, "logging_level": logging.ERROR
        }  # fmt: skip
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        if self.error is not None:
            raise self.error


def test_a_connection_leaves_the_handler_of_the_program(run):
    """Ray's own would end it without its clean-up."""
    before = signal.getsignal(signal.SIGTERM)
    assert run(_Unconnected()) == (EXPECTED, [])
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_thread_may_connect(monkeypatch):
    """Handlers of signals belong to the main thread, which is not asked to change one."""

    class Quiet(_Unconnected):
        def init(self, **_):
            """Leave the handlers alone."""

    found = Quiet()
    monkeypatch.setitem(sys.modules, "ray", found)
    with ThreadPoolExecutor(1) as thread:
        assert thread.submit(ray._connected).result() is found


class _Busy(FakeRay):
    """A cluster whose cores are taken for as many looks as a clock says."""

    def __init__(self, clock, seconds):
        super().__init__()
        self.clock, self.seconds = clock, seconds

    def wait(self, references, *, num_returns, timeout):
        if self.clock.now < self.seconds:
            self.clock.now += 1
            return [], references
        return super().wait(references, num_returns=num_returns, timeout=timeout)


@pytest.mark.parametrize(("seconds", "told"), [(20, 0), (21, 1), (90, 1)])
def test_a_cluster_without_a_free_core_is_told_once(run, monkeypatch, seconds, told):
    """Silence on a full cluster looks like a hang."""
    clock = SimpleNamespace(now=100)
    monkeypatch.setattr("brimful.clusters.ray.time", SimpleNamespace(monotonic=lambda: clock.now))
    results, lines = run(_Busy(clock, 100 + seconds))
    assert results == EXPECTED
    assert [line.startswith("no worker has begun yet: 2 wait for a core") for line in lines] == [True] * told


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("The actor died.\n\tactor_id: 1\n\nThe node ran low on memory. More words.", "The node ran low on memory"),
        ("The actor died.\n\tactor_id: 1\n\tpid: 5", "The actor died"),
        ("The actor died.\nA cause that is long enough: with a colon", "A cause that is long enough: with a colon"),
        ("The actor died.\nIts owner is away: 1", "The actor died"),
        ("One line", "One line"),
        ("", "FakeRayError"),
        ("a\n" + "x" * 300, "x" * 200),
    ],
)
def test_the_cause_in_a_message_of_ray(text, reason):
    """It names the actor in many lines, and the cause in one of them."""
    assert ray._reason(FakeRayError(text)) == reason


@pytest.mark.parametrize("error", [ConnectionError, ValueError])
def test_no_cluster_is_an_error_that_says_how_to_start_one(run, error):
    found = _Unconnected()
    found.error = error("Could not find any running Ray instance. Please specify the one to connect to.\nMore.")
    with pytest.raises(SettingsError) as caught:
        run(found)
    assert str(caught.value).startswith(
        "no Ray cluster was found (Could not find any running Ray instance. Please specify the one to connect to): start one with "
        "`ray start`, or name one in RAY_ADDRESS"
    )
