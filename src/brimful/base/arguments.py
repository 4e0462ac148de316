"""Names of the arguments of public calls: aliases from other libraries, and one line for a call that does not fit."""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any, TypeVar, cast

from brimful.errors import SettingsError, WrongTypeError

Function = TypeVar("Function", bound=Callable[..., Any])

CAPACITY_NAMES = ("max_length", "packing_length", "seq_length")
"""Names that trainers give to the capacity of a pack; the command line has a flag of each."""


def understands(
    elsewhere: Mapping[str, str] | None = None, /, *settings: type[Any], **names: tuple[str, ...]
) -> Callable[[Function], Function]:
    """Let a function understand other names of its keyword arguments, and explain a call that does not fit.

    The other names are for users who know them from another library; documentation and type checkers know one name.
    The error for a call that does not fit shows how the function is called.

    Args:
        elsewhere: by keyword argument that the function does not have: what to pass or call instead.
        settings: dataclasses whose fields the function takes as ``**options``; its signature shows them.
        names: by argument: its other names.

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
        signature = _signature(function, settings)
        title = function.__qualname__.removesuffix(".__init__").rpartition(".")[2]
        positional, required, all_names = _plain_parameters(signature)
        alias_names = [alias for aliases in names.values() for alias in aliases]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for argument, aliases in names.items():
                used_names = [name for name in (argument, *aliases) if name in kwargs]
                if len(used_names) > 1:
                    raise SettingsError(
                        f"{title}: {used_names[0]} and {used_names[1]} are one setting: give one of them"
                    )
                if used_names:
                    kwargs[argument] = kwargs.pop(used_names[0])
            # Bound before the call: a TypeError from inside the function is not a mistake of this call. A call that
            # clearly fits is not bound: binding takes as long as planning a hundred samples.
            taken = positional[: len(args)]
            given = kwargs.keys()
            fits = len(taken) == len(args) and given <= all_names and required <= given | set(taken)
            if not fits or not given.isdisjoint(taken):
                try:
                    signature.bind(*args, **kwargs)
                except TypeError as error:
                    raise _misfit(title, signature, alias_names, kwargs, elsewhere or {}, error) from None
            return function(*args, **kwargs)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return cast(Function, call)

    return decorate


def _signature(function: Callable[..., Any], settings: Sequence[type[Any]]) -> inspect.Signature:
    """Return the signature of a function, with the fields of its settings in place of ``**options``."""
    signature = inspect.signature(function)
    if not settings:
        return signature
    own_parameters = [item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD]
    # If the settings may be one object instead, no field is required.
    required = None if "settings" in signature.parameters else inspect.Parameter.empty
    of_fields = [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=required if item.default is dataclasses.MISSING else item.default,
            annotation=item.type,
        )
        for kind in settings
        for item in dataclasses.fields(kind)
        if item.init and item.name not in signature.parameters
    ]
    return signature.replace(parameters=own_parameters + of_fields)


def _plain_parameters(signature: inspect.Signature) -> tuple[list[str], frozenset[str], frozenset[str]]:
    """Return the names allowed by position, the required names and all names; no call fits if one is variadic."""
    plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    parameters = [parameter for parameter in signature.parameters.values() if parameter.kind in plain]
    by_position = [parameter.name for parameter in parameters if parameter.kind is plain[0]]
    if len(parameters) < len(signature.parameters):
        return [], frozenset({"*"}), frozenset()  # no call clearly fits: all are bound
    required = frozenset(parameter.name for parameter in parameters if parameter.default is parameter.empty)
    return by_position, required, frozenset(parameter.name for parameter in parameters)


def _misfit(
    title: str,
    signature: inspect.Signature,
    alias_names: list[str],
    kwargs: dict[str, Any],
    elsewhere: Mapping[str, str],
    error: TypeError,
) -> WrongTypeError:
    parameters = signature.parameters
    stray = next((name for name in kwargs if name not in parameters), None)
    if stray is not None:
        if stray in elsewhere:
            return WrongTypeError(f"{title} has no argument {stray!r}: {elsewhere[stray]}")
        names = [*parameters, *alias_names]
        matches = get_close_matches(stray, names, n=1, cutoff=0.5)
        hint = f": did you mean {matches[0]}?" if matches else f"; it has {', '.join(names)}"
        return WrongTypeError(f"{title} got an unexpected keyword argument {stray!r}{hint}")
    # The call is shown like a signature, with required arguments only, and a star before keyword-only ones.
    texts: list[str] = []
    for parameter in parameters.values():
        is_required = parameter.default is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY
        if parameter.name == "self" or not is_required:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        texts.append(parameter.name)
    return WrongTypeError(f"{title}: {error}: it is called as {title}({', '.join(texts)})")
