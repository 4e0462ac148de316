"""Arguments of public calls: settings with their help, aliases from other libraries, one line for a
call that does not fit.

One frozen dataclass of settings gives a call its keywords, a command its flags and a file its keys.

>>> @dataclass(frozen=True)
... class Warmup:
...     steps: int = option(100, "Steps of the warmup.", "N")
>>> [(field.name, field.metadata["help"].text) for field in fields(Warmup)]
[('steps', 'Steps of the warmup.')]
>>> as_settings(Warmup, None, {"steps": 5})
Warmup(steps=5)
"""

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from difflib import get_close_matches
from typing import Any, TypeVar, cast

from brimful.base.checks import check_type
from brimful.base.wording import setting
from brimful.errors import SettingsError, WrongTypeError

Function = TypeVar("Function", bound=Callable[..., Any])

CAPACITY_NAMES = ("max_length", "packing_length", "seq_length")
"""Names that trainers give to the capacity of a pack; the command line has a flag of each."""


Settings = TypeVar("Settings")


def understands(
    elsewhere: Mapping[str, str] | None = None, /, *settings: type[Any], **names: tuple[str, ...]
) -> Callable[[Function], Function]:
    """Let a function understand other names of its keyword arguments, and explain a call that does
    not fit.

    The other names are for users who know them from another library; documentation and type
    checkers know one name. The error for a call that does not fit shows how the function is called.

    Args:
        elsewhere: by keyword argument that the function does not have: what to pass or call
            instead.
        settings: dataclasses whose fields the function takes as ``**options``; its signature shows
            them.
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
        alias_names = [alias for aliases in names.values() for alias in aliases]

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            for argument, aliases in names.items():
                used_names = [name for name in (argument, *aliases) if name in kwargs]
                if len(used_names) > 1:
                    raise SettingsError(
                        f"{title}: {used_names[0]} and {used_names[1]} are one setting: give one "
                        "of them"
                    )
                if used_names:
                    kwargs[argument] = kwargs.pop(used_names[0])
            try:
                # Binding takes as long as planning a hundred samples: only a call that Python
                # refuses is bound.
                if not settings:
                    return function(*args, **kwargs)
            except TypeError as error:
                # A TypeError from inside the function has a longer traceback, and is not a mistake
                # of this call.
                if error.__traceback__ is None or error.__traceback__.tb_next is not None:
                    raise
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                raise _misfit(
                    title, signature, alias_names, kwargs, elsewhere or {}, error
                ) from None
            return function(*args, **kwargs)

        call.__signature__ = signature  # type: ignore[attr-defined]
        return cast(Function, call)

    return decorate


def _signature(function: Callable[..., Any], settings: Sequence[type[Any]]) -> inspect.Signature:
    """Return the signature of a function, with the fields of its settings in place of
    ``**options``.
    """
    signature = inspect.signature(function)
    if not settings:
        return signature
    own_parameters = [
        item for item in signature.parameters.values() if item.kind is not item.VAR_KEYWORD
    ]
    # If the settings may be one object instead, no field is required.
    required = None if "settings" in signature.parameters else inspect.Parameter.empty
    of_fields = [
        inspect.Parameter(
            item.name,
            inspect.Parameter.KEYWORD_ONLY,
            default=required if item.default is dataclasses.MISSING else item.default,
            annotation=item.type,
        )
        for settings_type in settings
        for item in dataclasses.fields(settings_type)
        if item.init and item.name not in signature.parameters
    ]
    return signature.replace(parameters=own_parameters + of_fields)


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
        names = [name for name in (*parameters, *alias_names) if name != "self"]
        matches = get_close_matches(stray, names, n=1, cutoff=0.5)
        hint = f": did you mean {matches[0]}?" if matches else f"; it has {', '.join(names)}"
        return WrongTypeError(f"{title} got an unexpected keyword argument {stray!r}{hint}")
    # The call is shown like a signature, with required arguments only, and a star before
    # keyword-only ones.
    texts: list[str] = []
    for parameter in parameters.values():
        is_required = (
            parameter.default is parameter.empty or parameter.kind is parameter.POSITIONAL_ONLY
        )
        if parameter.name == "self" or not is_required:
            continue
        if parameter.kind is parameter.KEYWORD_ONLY and "*" not in texts:
            texts.append("*")
        texts.append(parameter.name)
    return WrongTypeError(f"{title}: {error}: it is called as {title}({', '.join(texts)})")


@dataclass(frozen=True)
class Help:
    """Help of a setting, which the metadata of its field holds.

    Attributes:
        text: what the setting does.
        form: placeholder of its value, such as ``TOKENS``.
        flags: its flags, the one that messages name first; if empty, its name with hyphens.
        choices: the values that are allowed, if its type does not list them.
        example: a value, for messages about one that cannot be read.
        minimum: smallest number that is allowed.
    """

    text: str
    form: str | None = None
    flags: Sequence[str] = ()
    choices: Sequence[str] = ()
    example: str = ""
    minimum: int | None = None


def option(default: Any, text: str, form: str | None = None, *flags: str, **facts: Any) -> Any:
    """Return a field of a dataclass that is also an option of commands.

    Args:
        default: of the field; ``dataclasses.MISSING`` if the setting is required.
        text, form, flags, facts: see ``Help``.
    """
    return field(default=default, metadata={"help": Help(text, form, flags, **facts)})


def settings_from(
    settings_type: type[Settings], values: Mapping[str, Any], **further_values: Any
) -> Settings:
    """Return the settings that values give by the names of their fields; other values are left
    out.
    """
    return as_settings(settings_type, None, {**values, **further_values})


def as_settings(
    settings_type: type[Settings], settings: Settings | None, options: Mapping[str, Any]
) -> Settings:
    """Return the settings of a call, which are given as an object, as keywords, or as an object
    with changes.

    Args:
        settings_type: the dataclass of the settings.
        settings: the object, if any.
        options: the keywords of the call; names that are not fields of ``kind`` are left out.

    Raises:
        WrongTypeError: an object of another class; or no object, and a required setting is missing.
    """
    own_fields = [item for item in fields(settings_type) if item.init]  # type: ignore[arg-type]
    values = {item.name: options[item.name] for item in own_fields if item.name in options}
    if settings is not None:
        check_type(
            "settings",
            settings,
            settings_type,
            f"a {settings_type.__name__}",
            "or give its fields as keywords",
        )
        return replace(settings, **values)  # type: ignore[type-var]
    for item in own_fields:
        if item.default is MISSING and item.default_factory is MISSING and item.name not in values:
            raise WrongTypeError(
                f"give {setting(item.name)}, or settings={settings_type.__name__}({item.name}=…)"
            )
    return settings_type(**values)
