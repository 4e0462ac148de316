"""Compiled forms of functions, used if numba is installed and compiling pays.

Compiling a function never changes its result: the same function runs as plain Python, or has a
NumPy form with the same result, and the tests compare both. The first use compiles for some seconds
and keeps the result next to the package, or in the user's cache folder if the package is not
writable. If several processes of a machine start together, such as the ranks of a training run, one
compiles a function and the others load it.
"""

import contextlib
import warnings
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from typing import Any

from brimful.base.locks import locked

WORTH_COMPILING = 200_000
"""Number of items from which loading compiled code is faster than running plain Python or NumPy."""

_work_done: dict[Callable[..., Any], int] = {}
"""Number of items so far of each function that sums its calls."""

_loaded: set[Callable[..., Any]] = set()
"""Functions whose compiled form is loaded in this process: small calls use it too."""

_choice: bool | None = None
"""Use compiled forms always (true), never (false), or if it pays (None)."""

_is_warming_up = False
"""True while ``warming_up`` loads the compiled form of every function that is requested."""


def compiled(
    function: Callable[..., Any],
    work: int,
    *,
    worth: int = WORTH_COMPILING,
    sum_calls: bool = False,
) -> Callable[..., Any] | None:
    """Return the compiled form of a function if compiling pays for this amount of work, else None.

    Both forms must give the same result, so that the choice does not matter.

    Args:
        function: in the subset of Python that numba compiles.
        work: amount of work of this call, in items or in the unit of ``worth``.
        worth: amount of work from which loading the compiled form pays.
        sum_calls: add up the work of all calls, as for windows of a stream. For functions in plain
            Python, which are a hundred times slower than compiled code; NumPy is not, so small
            calls stay in NumPy.

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
    """Run a block with compiled forms only, or without any; for tests and benchmarks that compare
    both.

    >>> with compiled_forms(False):
    ...     compiled(sum, 1_000_000) is None
    True
    """
    global _choice
    earlier_choice, _choice = _choice, use
    try:
        yield
    finally:
        _choice = earlier_choice


@contextlib.contextmanager
def warming_up() -> Iterator[bool]:
    """Load the compiled form of every function that a block requests: after that, small calls use
    it too.

    Yields:
        True if numba is installed; else nothing is loaded.

    >>> with warming_up() as has_compiler:
    ...     pass
    """
    global _is_warming_up
    has_compiler = _numba() is not None
    was_warming_up, _is_warming_up = _is_warming_up, has_compiler
    try:
        with compiled_forms(has_compiler):
            yield has_compiler
    finally:
        _is_warming_up = was_warming_up


@cache
def compiled_form(function: Callable[..., Any]) -> Callable[..., Any] | None:
    """Return the compiled form of a function; None without numba."""
    numba = _numba()
    if numba is None:
        return None
    form: Callable[..., Any]
    try:
        form = _compiled_by_one(numba.njit(cache=True, nogil=True)(function))
    except RuntimeError:
        # Neither the package nor the user's cache folder is writable, as in many containers, so
        # numba refuses to cache. The function is compiled in each process.
        form = numba.njit(nogil=True)(function)
    return form


def form_for(
    function: Callable[..., Any], arguments: Sequence[object]
) -> Callable[..., Any] | None:
    """Compile a function once, now, for arguments of these types, and return it; None without
    numba.

    Arguments of other types are converted if that loses nothing (writable arrays are accepted for
    read-only ones); otherwise the call raises a ``TypeError``.

    Args:
        function: in the subset of Python that numba compiles; it must be compiled nowhere else.
        arguments: of one call, as examples of the types.
    """
    form: Any = compiled_form(function)
    if form is not None:
        form.compile(tuple(map(_numba().typeof, arguments)))
        form.disable_compile()
    return form  # type: ignore[no-any-return]


def _compiled_by_one(form: Any) -> Any:
    """Let one process compile a cached form while the others wait and then find its code.

    Numba looks up cached code, compiles and caches it in one call without a lock: processes that
    start together would all compile, and one that saves its code may drop the code for other types
    from the index.
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
    except (
        ImportError
    ) as error:  # such as a NumPy that is too new for numba: no reason to stop a training run
        warnings.warn(
            f"numba is installed and cannot be imported ({error}): going on without compiled code; "
            "results are the same",
            RuntimeWarning,
            stacklevel=2,
        )
        return None
    numba.extending.overload(bisect_left, strict=False)(lambda values, key: _first_from)
    return None if numba.config.DISABLE_JIT else numba  # NUMBA_DISABLE_JIT=1


def _first_from(values: Any, key: Any) -> int:
    """Do what ``bisect_left`` does, which numba does not know."""
    start, end = 0, len(values)
    while start < end:
        middle = (start + end) >> 1
        if values[middle] < key:
            start = middle + 1
        else:
            end = middle
    return start
