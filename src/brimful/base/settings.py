"""Settings with their help: one frozen dataclass gives a call its keywords, a command its flags, a file its keys.

>>> from dataclasses import dataclass, fields
>>> @dataclass(frozen=True)
... class Warmup:
...     steps: int = option(100, "Steps of the warmup.", "N")
>>> [(field.name, field.metadata["help"].text) for field in fields(Warmup)]
[('steps', 'Steps of the warmup.')]
>>> as_settings(Warmup, None, {"steps": 5})
Warmup(steps=5)
"""

from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, replace
from typing import Any, TypeVar

from brimful.base.checks import check_type
from brimful.base.wording import setting
from brimful.errors import WrongTypeError

Settings = TypeVar("Settings")


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


def settings_from(kind: type[Settings], values: Mapping[str, Any], **further_values: Any) -> Settings:
    """Return the settings that values give by the names of their fields; other values are left out."""
    names = [item.name for item in fields(kind) if item.init and item.name in values]  # type: ignore[arg-type]
    return kind(**{name: values[name] for name in names}, **further_values)


def as_settings(kind: type[Settings], settings: Settings | None, options: Mapping[str, Any]) -> Settings:
    """Return the settings of a call, which are given as an object, as keywords, or as an object with changes.

    Args:
        kind: the dataclass of the settings.
        settings: the object, if any.
        options: the keywords of the call; names that are not fields of ``kind`` are left out.

    Raises:
        WrongTypeError: an object of another class; or no object, and a required setting is missing.
    """
    own_fields = [item for item in fields(kind) if item.init]  # type: ignore[arg-type]
    values = {item.name: options[item.name] for item in own_fields if item.name in options}
    if settings is not None:
        check_type("settings", settings, kind, f"a {kind.__name__}", "or give its fields as keywords")
        return replace(settings, **values)  # type: ignore[type-var]
    for item in own_fields:
        if item.default is MISSING and item.default_factory is MISSING and item.name not in values:
            raise WrongTypeError(f"give {setting(item.name)}, or settings={kind.__name__}({item.name}=…)")
    return kind(**values)
