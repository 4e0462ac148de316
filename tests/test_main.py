"""The program changes its process before the command is imported."""

import gc
import os

import pytest

from brimful import __main__


@pytest.fixture(autouse=True)
def process_as_before(monkeypatch):
    """The program may change its process; this one has other tests to run."""
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "unset")
    monkeypatch.delenv("OPENBLAS_NUM_THREADS")
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    gc.unfreeze()


@pytest.mark.parametrize(
    ("command", "is_changed"), [("pack", True), ("measure", True), ("verify", False), ("demo", False)]
)
def test_only_commands_that_train_nothing_leave_numpy_one_thread(command, is_changed):
    """A model that is trained in this process needs all cores, and the collector as it is."""
    before = gc.get_threshold()
    __main__._tune_for(command)
    assert ("OPENBLAS_NUM_THREADS" in os.environ) == is_changed
    assert (gc.get_threshold() != before) == is_changed


def test_the_number_of_threads_that_a_user_chose_stays(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "3")
    __main__._tune_for("pack")
    assert os.environ["OPENBLAS_NUM_THREADS"] == "3"
