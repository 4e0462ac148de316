"""Tasks run once each, here, in threads or in processes; a failure of one reaches the caller, and ends the others."""

from __future__ import annotations

import hashlib
import multiprocessing
import os
import signal
import threading
import time

import pytest

from brimful.base.execute import Resources, available_cores, run_tasks
from brimful.base.execute.workers import Workers
from brimful.errors import BadSampleError, SettingsError, TaskFailedError


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


def _raise_end_of_file(_context, _number):
    raise EOFError("a file of the task")


def _make_a_lambda(_context, number):
    return lambda: number


def _stay_in_c(folder, number):
    """The first task answers; the others say which process they are in and stay there, deaf to signals, for minutes."""
    if number:
        (folder / f".{os.getpid()}").touch()
        (folder / f".{os.getpid()}").rename(folder / str(os.getpid()))
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1 << 30)
    return number


def _interrupt_when(folder, files):
    """Press Ctrl-C in this process when a folder has that number of files."""

    def press():
        while len([name for name in os.listdir(folder) if name.isdigit()]) < files:
            time.sleep(0.01)
        signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)  # type: ignore[arg-type]

    threading.Thread(target=press, daemon=True).start()


def _is_gone(pid):
    for _ in range(1000):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


def test_one_process_runs_the_tasks_here_in_order():
    """Without it a small job would wait for processes to start, or a debugger could not step in."""
    assert list(run_tasks(_scaled, [3, 1, 2], context=10, resources=Resources(1))) == [
        (3, (30, os.getpid())),
        (1, (10, os.getpid())),
        (2, (20, os.getpid())),
    ]


def test_a_single_task_runs_here_whatever_the_number_of_processes():
    """Without it one task would pay for a pool."""
    assert list(run_tasks(_scaled, [4], context=10, resources=Resources(8))) == [(4, (40, os.getpid()))]
    assert list(run_tasks(_scaled, [], context=10, resources=Resources(8))) == []


def test_results_come_as_they_are_made():
    """Without it nothing of a killed job would have been reported, or kept."""
    done = []
    for task, _ in run_tasks(lambda _, number: done.append(number), [1, 2, 3], context=None, resources=Resources(1)):
        assert done == list(range(1, task + 1))
    assert done == [1, 2, 3]


def test_several_processes_run_every_task_once():
    """Without it a task could be lost or run twice when more wait than are queued."""
    results = list(run_tasks(_scaled, range(12), context=10, resources=Resources(2)))
    assert sorted((task, value) for task, (value, _) in results) == [(number, 10 * number) for number in range(12)]
    assert os.getpid() not in {pid for _, (_, pid) in results}


def test_an_error_of_a_task_reaches_the_caller_and_stops_the_rest(tmp_path):
    """Without it a bad row would be lost in a worker, or the job would go on for hours before it says so."""
    with pytest.raises(BadSampleError) as caught:
        list(run_tasks(_refuse_seven, range(200), context=tmp_path, resources=Resources(2)))
    assert str(caught.value) == "data.jsonl:8 (sample 7): is seven"
    assert {"0", "1"} <= set(os.listdir(tmp_path))
    assert len(os.listdir(tmp_path)) < 199


def test_a_worker_that_dies_is_reported():
    """Without it a job whose worker ran out of memory would hang for ever."""
    with pytest.raises(TaskFailedError, match="a worker process died before it answered: most often memory ran out"):
        list(run_tasks(_die_at_three, range(8), context=None, resources=Resources(2)))


@pytest.mark.skipif(not hasattr(signal, "pthread_kill"), reason="no signals to threads here")
def test_ctrl_c_reaches_the_caller_and_no_worker_outlives_it(tmp_path):
    """Without it a notebook waits for every worker to finish its block, and so does the end of its process."""
    before = signal.getsignal(signal.SIGINT)
    _interrupt_when(tmp_path, files=2)
    with pytest.raises(KeyboardInterrupt):
        list(run_tasks(_stay_in_c, range(1, 9), context=tmp_path, resources=Resources(2)))
    assert len(os.listdir(tmp_path)) == 2
    assert all(_is_gone(int(name)) for name in os.listdir(tmp_path))
    assert signal.getsignal(signal.SIGINT) is before
    assert dict(run_tasks(_scaled, [1, 2], context=10, resources=Resources(2)))[2][0] == 20, "the next job runs"


def test_a_caller_who_stops_asking_ends_the_workers(tmp_path):
    """Without it an error while results are used leaves processes that go on."""
    results = run_tasks(_stay_in_c, range(9), context=tmp_path, resources=Resources(2))
    assert next(results) == (0, 0)
    while not [name for name in os.listdir(tmp_path) if name.isdigit()]:
        time.sleep(0.01)
    results.close()
    assert all(_is_gone(int(name.strip("."))) for name in os.listdir(tmp_path))


def test_no_process_is_started_for_a_job_that_has_ended():
    """Without it a process that was still to be started when Ctrl-C came would stay."""
    workers = Workers(_scaled, 10)
    workers.end()
    with pytest.raises(TaskFailedError, match="the job was ended"), workers.hire():
        pass


def test_an_error_comes_with_the_traceback_of_the_worker():
    """Without it the line of an encoder that failed stays unknown."""
    with pytest.raises(EOFError, match="a file of the task") as caught:
        list(run_tasks(_raise_end_of_file, range(4), context=None, resources=Resources(2)))
    assert "in _raise_end_of_file" in str(caught.value.__cause__)


def test_a_result_that_cannot_be_sent_is_an_error():
    """Without it the job would wait for it for ever."""
    with pytest.raises(TaskFailedError, match="a worker process cannot send <function _make_a_lambda"):
        list(run_tasks(_make_a_lambda, range(4), context=None, resources=Resources(2)))


def test_threads_run_every_task_once_and_an_error_ends_them(tmp_path):
    """Without it tasks that wait for a disk wait one after the other, or go on in the background after an error."""
    assert sorted(run_tasks(_scaled, range(9), context=10, resources=Resources(1), threads=2)) == [
        (number, (10 * number, os.getpid())) for number in range(9)
    ]
    with pytest.raises(BadSampleError):
        list(run_tasks(_refuse_seven, range(200), context=tmp_path, resources=Resources(1), threads=2))
    assert {"0", "6"} <= set(os.listdir(tmp_path))
    assert len(os.listdir(tmp_path)) < 199
    assert not [thread for thread in threading.enumerate() if "_do_tasks" in thread.name]


def _what_is_heard(pipe):
    pipe.send((signal.pthread_sigmask(signal.SIG_BLOCK, []), signal.getsignal(signal.SIGINT)))


@pytest.mark.skipif(not hasattr(signal, "pthread_sigmask"), reason="no masks here")
def test_other_processes_from_the_same_server_hear_ctrl_c():
    """Without it a pool of the caller, which shares our server of processes, could not be stopped any more."""
    list(run_tasks(_scaled, range(4), context=10, resources=Resources(2)))
    context = multiprocessing.get_context("forkserver")
    ours, theirs = context.Pipe()
    process = context.Process(target=_what_is_heard, args=(theirs,))
    process.start()
    assert ours.recv() == (set(), signal.default_int_handler)
    process.join()


@pytest.mark.parametrize("num_proc", [0, -1])
def test_no_processes_are_refused(num_proc):
    """Without it num_proc=0 would fail inside the standard library."""
    with pytest.raises(SettingsError) as caught:
        list(run_tasks(_scaled, [1, 2], context=1, resources=Resources(num_proc)))
    assert str(caught.value) == f"num_proc must be at least 1 and is {num_proc}"


def test_cores_are_those_that_may_be_used(monkeypatch):
    """Without it a job in a container of two cores would start a process for each of the machine's hundred."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {3, 5}, raising=False)
    assert available_cores() == 2
