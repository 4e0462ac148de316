"""Compiled where it pays, and wherever the package is installed."""

import sys

import pytest

from brimful import compiling


def double(number):
    return 2 * number


def triple(number):
    return 3 * number


def test_small_calls_add_up(monkeypatch):
    """A stream is planned window by window: none is worth compiling for, all together are."""
    pytest.importorskip("numba")
    monkeypatch.setattr(compiling, "_passed", {})
    monkeypatch.setattr(compiling, "WORTH_COMPILING", 10)
    assert [compiling.compiled(double, 4) is not None for _ in range(4)] == [False, False, True, True]
    assert compiling.compiled(double, 0)(21) == 42


def test_without_a_folder_to_keep_code_in(monkeypatch):
    """Read-only images with a home that is none: numba refuses to cache, and planning must not stop for that."""
    caching = pytest.importorskip("numba.core.caching")
    monkeypatch.setattr(caching.CacheImpl, "_locator_classes", [])
    with pytest.raises(RuntimeError, match="no locator available"):
        caching.FunctionCache(triple)
    assert compiling.compiled_form(triple)(7) == 21


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
