"""The collector of garbage is left as it was, whatever a task does."""

import gc

import pytest

from brimful.base.execute import run_tasks
from brimful.base.execute.garbage import OBJECTS_BETWEEN_COLLECTIONS, rare_collections


@pytest.fixture(autouse=True)
def threshold():
    before = gc.get_threshold()
    yield
    gc.set_threshold(*before)


def _threshold_in_task(_context, _task):
    return gc.get_threshold()[0]


def test_a_task_in_this_process_is_seldom_interrupted_and_the_caller_as_before():
    """Between two tasks the caller's own code runs, with the caller's own setting."""
    gc.set_threshold(500, 10, 10)
    for _, in_task in run_tasks(_threshold_in_task, [0, 1], context=None, num_proc=1):
        assert in_task == OBJECTS_BETWEEN_COLLECTIONS
        assert gc.get_threshold() == (500, 10, 10)


def test_the_setting_comes_back_after_an_error():
    gc.set_threshold(500, 10, 10)
    with pytest.raises(KeyError), rare_collections():
        raise KeyError
    assert gc.get_threshold() == (500, 10, 10)


@pytest.mark.parametrize("first", [0, 1_000_000])
def test_a_process_that_looks_more_rarely_stays_as_it_is(first):
    gc.set_threshold(first, 10, 10)
    with rare_collections():
        assert gc.get_threshold()[0] == first
