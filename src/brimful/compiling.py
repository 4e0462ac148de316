"""Compiled forms of functions, where numba is installed and compiling pays.

A function that is compiled decides nothing: it is plain Python, or has a NumPy form beside it, with the same result, and
the tests hold both against each other. The first use compiles for some seconds and keeps the result beside the package,
or in the user's cache folder where that is not writable. Of the processes of a machine that start together, such as the
ranks of a training, one compiles a function and the others load it.
"""

import contextlib
import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from brimful.locks import locked

WORTH_COMPILING = 200_000
"""Items from which loading compiled code is quicker than running plain Python or NumPy."""

_work_done: dict[Callable[..., Any], int] = {}
"""Items that went through each function that sums its calls."""

_loaded: set[Callable[..., Any]] = set()
"""Functions that have a compiled form in this process: its loading is paid for, so small calls use it too."""

_choice: bool | None = None
"""Use compiled forms always (true), never (false), or where it pays (None)."""

_is_warming_up = False
"""Keep the compiled form of every function that is asked for."""


def compiled(
    function: Callable[..., Any], work: int, *, worth: int = WORTH_COMPILING, sum_calls: bool = False
) -> Callable[..., Any] | None:
    """Return the compiled form of a function if it pays for this much work, else None.

    Both forms must give the same result, so that the choice does not matter.

    Args:
        function: in the subset of Python that numba compiles.
        work: of this call, in items, or in the unit of ``worth``.
        worth: work from which loading the compiled form pays.
        sum_calls: let many small calls pay together, as windows of a stream do. For plain Python, which is a hundred
            times slower than compiled code; NumPy is not, and small calls go on in it.

    >>> compiled(sum, 1_000) is None
    True
    """
    if _choice is not None:
        if _is_warming_up:
            _loaded.add(function)
        return compiled_form(function) if _choice else None
    if function in _loaded:
        return compiled_form(function)
    if sum_calls:
        _work_done[function] = work = _work_done.get(function, 0) + work
    if work < worth:
        return None
    _loaded.add(function)
    return compiled_form(function)


@contextlib.contextmanager
def compiled_forms(use: bool) -> Iterator[None]:
    """Run a block with compiled forms alone, or with none; for tests and benchmarks, which hold both against each other.

    >>> with compiled_forms(False):
    ...     compiled(sum, 1_000_000) is None
    True
    """
    global _choice
    before, _choice = _choice, use
    try:
        yield
    finally:
        _choice = before


@contextlib.contextmanager
def warming_up() -> Iterator[bool]:
    """Load the compiled form of every function that a block asks for: from then on small calls use them too.

    Yields:
        True if numba is installed; else nothing is loaded.

    >>> with warming_up() as has_compiler:
    ...     pass
    """
    global _is_warming_up
    has_compiler = _numba() is not None
    before, _is_warming_up = _is_warming_up, has_compiler
    try:
        with compiled_forms(has_compiler):
            yield has_compiler
    finally:
        _is_warming_up = before


@cache
def compiled_form(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return a function, compiled; None without numba."""
    numba = _numba()
    if numba is None:
        return None
    form: Callable[..., Any]
    try:
        form = _compiled_by_one(numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:
        # Neither the package nor a cache folder of the user can be written to, as in many containers: numba refuses
        # to keep anything then. It is compiled in each process.
        form = numba.njit(nogil=True)(function)
    return form


def form_for(function: Callable[..., Any], arguments: Sequence[object]) -> Callable[..., Any] | None:
    """Return a function, compiled now, once, for arguments of these types; None without numba.

    Other arguments are converted where that loses nothing (arrays that can be written pass for read-only ones), and else
    refused with a ``TypeError``.

    Args:
        function: as of ``compiled``; only ever compiled here.
        arguments: of a call, as examples of the types.
    """
    form: Any = compiled_form(function)
    if form is not None:
        form.compile(tuple(map(_numba().typeof, arguments)))
        form.disable_compile()
    return form  # type: ignore[no-any-return]


def _compiled_by_one(form: Any) -> Any:
    """Let one process compile a kept form, and those that wait for it find its code.

    Numba looks for kept code, compiles and keeps it in one call, without a lock: processes that start together would all
    compile, and one that keeps its code may drop that of another type from the index.
    """
    look_up_or_compile, path = form.compile, form.py_func.__code__.co_filename

    def compile_alone(signature: Any) -> Any:
        with locked(path):
            return look_up_or_compile(signature)

    form.compile = compile_alone
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
