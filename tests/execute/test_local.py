"""Tasks run once each, here or in processes, and a failure of one reaches the caller."""

from __future__ import annotations

import os
import time

import pytest

from brimful.errors import BadSampleError, SettingsError, TaskFailedError
from brimful.execute import available_cores, run_tasks


def _scaled(factor, number):
    return factor * number, os.getpid()


def _refuse_seven(folder, number):
    if number == 7:
        raise BadSampleError("is seven", sample_id=number, where="data.jsonl:8")
    (folder / str(number)).touch()
    return number


def _die_at_three(_context, number):
    if number == 3:
        os._exit(9)
    time.sleep(0.01)
    return number


def test_one_process_runs_the_tasks_here_in_order():
    """Without it a small job would wait for processes to start, or a debugger could not step in."""
    assert list(run_tasks(_scaled, [3, 1, 2], context=10, num_proc=1)) == [
        (3, (30, os.getpid())),
        (1, (10, os.getpid())),
        (2, (20, os.getpid())),
    ]


def test_a_single_task_runs_here_whatever_the_number_of_processes():
    """Without it one task would pay for a pool."""
    assert list(run_tasks(_scaled, [4], context=10, num_proc=8)) == [(4, (40, os.getpid()))]
    assert list(run_tasks(_scaled, [], context=10, num_proc=8)) == []


def test_results_come_as_they_are_made():
    """Without it nothing of a killed job would have been reported, or kept."""
    done = []
    for task, _ in run_tasks(lambda _, number: done.append(number), [1, 2, 3], context=None, num_proc=1):
        assert done == list(range(1, task + 1))
    assert done == [1, 2, 3]


def test_several_processes_run_every_task_once():
    """Without it a task could be lost or run twice when more wait than are queued."""
    results = list(run_tasks(_scaled, range(12), context=10, num_proc=2))
    assert sorted((task, value) for task, (value, _) in results) == [(number, 10 * number) for number in range(12)]
    assert os.getpid() not in {pid for _, (_, pid) in results}


def test_an_error_of_a_task_reaches_the_caller_and_stops_the_rest(tmp_path):
    """Without it a bad row would be lost in a worker, or the job would go on for hours before it says so."""
    with pytest.raises(BadSampleError) as caught:
        list(run_tasks(_refuse_seven, range(200), context=tmp_path, num_proc=2))
    assert str(caught.value) == "data.jsonl:8 (sample 7): is seven"
    assert {"0", "1"} <= set(os.listdir(tmp_path))
    assert len(os.listdir(tmp_path)) < 199


def test_a_worker_that_dies_is_reported():
    """Without it a job whose worker ran out of memory would hang for ever."""
    with pytest.raises(TaskFailedError, match="a worker process died before it answered: most often memory ran out"):
        list(run_tasks(_die_at_three, range(8), context=None, num_proc=2))


@pytest.mark.parametrize("num_proc", [0, -1])
def test_no_processes_are_refused(num_proc):
    """Without it num_proc=0 would fail inside the standard library."""
    with pytest.raises(SettingsError) as caught:
        list(run_tasks(_scaled, [1, 2], context=1, num_proc=num_proc))
    assert str(caught.value) == f"num_proc must be at least 1 and is {num_proc}"


def test_cores_are_those_that_may_be_used(monkeypatch):
    """Without it a job in a container of two cores would start a process for each of the machine's hundred."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert available_cores() == 2
