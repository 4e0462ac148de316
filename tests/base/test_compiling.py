"""Compiled where that pays, and wherever the package is installed."""

import os
import subprocess
import sys
import threading
from bisect import bisect_left
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.base import compiling
from brimful.base.locks import locked


def double(number):
    return 2 * number


def triple(number):
    return 3 * number


def quadruple(number):
    return 4 * number


def last(numbers):
    return numbers[-1]


def test_small_calls_add_up(monkeypatch):
    """A stream is planned window by window: none is worth compiling for, all together are."""
    pytest.importorskip("numba")
    monkeypatch.setattr(compiling, "_work_done", {})
    monkeypatch.setattr(compiling, "_loaded", set())
    asked = [compiling.compiled(double, 4, worth=10, sum_calls=True) is not None for _ in range(4)]
    assert asked == [False, False, True, True]
    form = compiling.compiled(double, 0)
    assert form is not None, "its loading is paid for"
    assert form(21) == 42


def test_calls_are_summed_where_that_is_asked_for(monkeypatch):
    """NumPy is as quick for small arrays, however many: numba would be loaded for nothing."""
    monkeypatch.setattr(compiling, "_loaded", set())
    assert [compiling.compiled(triple, 4, worth=10) is not None for _ in range(4)] == [False] * 4


@given(st.lists(st.integers(0, 9), max_size=20), st.integers(-1, 10))
def test_the_search_that_numba_lacks_is_that_of_python(values, key):
    """Compiled and plain forms would make two plans of one data set."""
    values.sort()
    assert compiling._first_from(values, key) == bisect_left(values, key)


def test_tests_choose_the_form(monkeypatch):
    """Inside the other choice, and back again."""
    pytest.importorskip("numba")
    monkeypatch.setattr(compiling, "_loaded", set())
    with compiling.compiled_forms(True):
        assert compiling.compiled(double, 0) is not None
        with compiling.compiled_forms(False):
            assert compiling.compiled(double, 10**9) is None
        assert compiling.compiled(double, 0) is not None


def test_a_form_for_some_types_is_compiled_once():
    """A training that met read-only arrays after its first batch would compile again for a second, on every rank."""
    pytest.importorskip("numba")
    fixed = np.arange(3)
    fixed.flags.writeable = False
    form: Any = compiling.form_for(last, (fixed,))
    assert [form(fixed), form(np.arange(5))] == [2, 4]
    assert len(form.signatures) == 1
    with pytest.raises(TypeError, match="No matching definition"):
        form(np.arange(3.0))


def test_without_a_folder_to_keep_code_in(monkeypatch):
    """Read-only images with a home that is none: numba refuses to cache, and planning must not stop for that."""
    caching = pytest.importorskip("numba.core.caching")
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator available"):
        caching.FunctionCache(triple)
    assert compiling.compiled_form(triple)(7) == 21


def test_one_process_compiles_for_all():
    """Eight ranks of a machine start together: without it each compiles for half a minute, and keeps over the others."""
    pytest.importorskip("numba")
    form = compiling.compiled_form(quadruple)
    results = []
    thread = threading.Thread(target=lambda: results.append(form(21)))
    with locked(__file__):  # another process compiles a function of this file
        thread.start()
        thread.join(0.2)
        assert form.signatures == []
    thread.join()
    assert results == [84]
    assert len(form.signatures) == 1


def test_a_numba_that_cannot_be_imported(monkeypatch, recwarn):
    """Numba refuses a NumPy newer than it knows; a training that got this far must not end for that."""
    compiling._numba.cache_clear()
    compiling.compiled_form.cache_clear()
    monkeypatch.setattr(compiling, "find_spec", lambda name: object())
    monkeypatch.setitem(sys.modules, "numba", None)
    try:
        assert compiling.compiled_form(double) is None
        assert compiling.compiled_form(triple) is None
    finally:
        compiling._numba.cache_clear()
        compiling.compiled_form.cache_clear()
    (warning,) = recwarn
    assert "cannot be imported (import of numba halted" in str(warning.message)


def test_compiling_that_is_switched_off():
    """``NUMBA_DISABLE_JIT=1``, for a debugger: its functions are then plain ones, without what is asked of them here."""
    pytest.importorskip("numba")
    code = "from brimful import plan_packs; print(plan_packs([3, 3, 5, 6, 1, 1] * 50_000, capacity=7).num_packs)"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    result = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
    assert result.stdout.split() == ["150000"], result.stderr
