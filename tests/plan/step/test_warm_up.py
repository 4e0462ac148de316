"""After ``warm_up``, small plans run compiled."""

import pytest

from brimful import compiling, warm_up
from brimful.plan.fit import best_fit_decreasing as module
from brimful.plan.step import fill


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
