"""Names of the arguments of public calls: aliases that people bring along, and one line for a call that does not fit."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, TypeVar, cast

from brimful.errors import SettingsError, WrongTypeError

__all__ = ["CAPACITY_NAMES", "understands"]

Function = TypeVar("Function", bound=Callable[..., Any])

CAPACITY_NAMES = ("max_length", "packing_length", "seq_length")
"""What trainers call the capacity of a pack; the command line has a flag of each."""


def understands(**names: tuple[str, ...]) -> Callable[[Function], Function]:
    """Let a function understand other names of its keyword arguments, and tell how it is called.

    Its signature stays as it is: the names are for people who bring them along, and documentation and type checkers
    know one. A call that does not fit the signature is told how to be made.

    >>> @understands(capacity=("max_length",))
    ... def plan(lengths, *, capacity):
    ...     return capacity
    >>> plan([1], max_length=8)
    8
    >>> plan([1], max_length=8, capacity=8)
    Traceback (most recent call last):
        ...
    brimful.errors.SettingsError: plan: capacity and max_length are one setting: give one of them
    >>> plan([1], max_len=8)
    Traceback (most recent call last):
        ...
    brimful.errors.WrongTypeError: plan got an unexpected keyword argument 'max_len': did you mean max_length?
    >>> plan([1], 8)
    Traceback (most recent call last):
        ...
    brimful.errors.WrongTypeError: plan: too many positional arguments: it is called as plan(lengths, *, capacity)
    """

    def decorate(function: Function) -> Function:
        signature = inspect.signature(function)
        title = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]

        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            for argument, others in names.items():
                given = [name for name in (argument, *others) if name in kwargs]
                if len(given) > 1:
                    raise SettingsError(f"{title}: {given[0]} and {given[1]} are one setting: give one of them")
                if given:
                    kwargs[argument] = kwargs.pop(given[0])
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                known = [*signature.parameters, *(name for others in names.values() for name in others)]
                raise _misfit(title, signature, known, kwargs, error) from None
            return function(*args, **kwargs)

        return cast(Function, called)

    return decorate


def _misfit(
    title: str, signature: inspect.Signature, known: list[str], given: dict[str, Any], error: TypeError
) -> WrongTypeError:
    strange = next((name for name in given if name not in signature.parameters), None)
    if strange is not None:
        near = get_close_matches(strange, known, n=1, cutoff=0.5)
        hint = f": did you mean {near[0]}?" if near else f"; it has {', '.join(known)}"
        return WrongTypeError(f"{title} got an unexpected keyword argument {strange!r}{hint}")
    missing = [
        name
        for name, parameter in signature.parameters.items()
        if parameter.default is inspect.Parameter.empty or parameter.kind is inspect.Parameter.POSITIONAL_ONLY
    ]
    shown = [name for name in missing if name != "self"]
    by_name = [name for name in shown if signature.parameters[name].kind is inspect.Parameter.KEYWORD_ONLY]
    if by_name:
        shown.insert(shown.index(by_name[0]), "*")
    return WrongTypeError(f"{title}: {error}: it is called as {title}({', '.join(shown)})")
