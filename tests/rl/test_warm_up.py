"""After ``warm_up``, small plans run compiled."""

import numpy as np
import pytest

from brimful import warm_up
from brimful.base import compiling
from brimful.plan.fit import best_fit_decreasing as module
from brimful.rl import fill_bins as fill


@pytest.mark.long  # in a fresh clone: every loop of steps is compiled
def test_small_calls_are_compiled_from_then_on(monkeypatch):
    """Without it the first steps of a training run in plain Python, or wait seconds for the compiler."""
    pytest.importorskip("numba")
    monkeypatch.setattr(compiling, "_loaded", set())
    monkeypatch.setattr(compiling, "_work_done", {})
    assert compiling.compiled(module._best_fit_decreasing, 20) is None
    assert warm_up()
    for function in (module._best_fit_decreasing, fill._fill):
        assert compiling.compiled(function, 20) is not None


def test_without_a_compiler_nothing_happens(monkeypatch):
    monkeypatch.setattr(compiling, "_numba", lambda: None)
    monkeypatch.setattr(compiling, "_loaded", set())
    assert warm_up() is False
    assert compiling._loaded == set()


def test_every_loop_of_steps_is_asked_for(monkeypatch):
    """In the form that is loaded: one that no plan of the warm-up reaches is compiled in the first step of a training."""
    asked = set()

    def form(function):
        asked.add(function.__name__)
        return function

    monkeypatch.setattr(compiling, "compiled_form", form)
    monkeypatch.setattr(compiling, "_numba", lambda: object())
    monkeypatch.setattr(compiling, "_loaded", set())
    with np.errstate(over="ignore"):  # of hashes, which compiled code lets pass
        assert warm_up()
    assert asked == {
        *("_best_fit_decreasing", "_count", "_deal", "_exchange_between_ranks"),
        *("_exchange_within_ranks", "_fill", "_fill_common_levels", "_fill_levels", "_fill_micro_batches"),
        *("_number_in_blocks", "_permute_in_blocks", "_place_least_loaded", "_scan_bins", "_search", "_sort"),
        "assign_pieces",
    }
    assert {function.__name__ for function in compiling._loaded} == asked
