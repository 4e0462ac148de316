"""Compiled forms of functions, where numba is installed and compiling pays.

Nothing that is compiled decides anything: each function is plain Python, or has a NumPy form beside it, with the same
result, and the tests hold both against each other. The first use compiles for some seconds and keeps the result beside
the package, or in the user's cache folder where that is not writable.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib.util import find_spec
from typing import Any

__all__ = ["WORTH_COMPILING", "compiled", "compiled_form", "pays"]

WORTH_COMPILING = 200_000
"""Items from which loading compiled code is quicker than running plain Python or NumPy."""

_passed: dict[Callable[..., Any], int] = {}
"""Items that went through each function so far: many small calls pay for compiling as one large one does."""


def pays(num_items: int) -> bool:
    """Whether one call with that many items pays for compiled code.

    >>> pays(1_000), pays(1_000_000)
    (False, True)
    """
    return num_items >= WORTH_COMPILING


def compiled(function: Callable[..., Any], num_items: int) -> Callable[..., Any] | None:
    """A function, compiled, if that pays for the items that it was asked for until now, else None.

    Both must give the same result, so that it does not matter when this changes its mind.

    >>> compiled(sum, 1_000) is None
    True
    """
    _passed[function] = passed = _passed.get(function, 0) + num_items
    return compiled_form(function) if pays(passed) else None


@cache
def compiled_form(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """A function, compiled; None without numba."""
    numba = _numba()
    if numba is None:
        return None
    form: Callable[..., Any]
    try:
        form = numba.njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # Neither the package nor a cache folder of the user can be written to, as in many containers: numba refuses
        # to keep anything then. It is compiled in each process.
        form = numba.njit(nogil=True)(function)
    return form


@cache
def _numba() -> Any:
    if find_spec("numba") is None:
        return None
    try:
        import numba
    except ImportError as error:  # such as a NumPy that is too new for it: no reason to stop a training
        warnings.warn(
            f"numba is installed and cannot be imported ({error}): going on without compiled code, to the same results",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    return numba
