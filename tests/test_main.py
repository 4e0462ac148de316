"""The program changes its process before the command is imported."""

import gc
import os
import signal

import pytest


@pytest.fixture(autouse=True)
def tune_for(monkeypatch):
    """The program changes its process, with its import too; this process has other tests to run."""
    handler = signal.getsignal(signal.SIGINT)
    from brimful.__main__ import _tune_for

    signal.signal(signal.SIGINT, handler)
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "unset")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    thresholds = gc.get_threshold()
    gc.set_threshold(700, 10, 10)
    yield _tune_for
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.parametrize(
    ("command", "is_changed"), [("pack", True), ("measure", True), ("verify", False), ("demo", False)]
)
def test_only_commands_that_train_nothing_leave_numpy_one_thread(tune_for, command, is_changed):
    """A model that is trained in this process needs all cores, and the collector as it is."""
    before = gc.get_threshold()
    tune_for(command)
    assert ("OPENBLAS_NUM_THREADS" in os.environ) == is_changed
    assert (gc.get_threshold() != before) == is_changed


def test_the_number_of_threads_that_a_user_chose_stays(tune_for, monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    tune_for("pack")
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3"
