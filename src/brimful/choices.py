"""Settings that are one of a few names."""

from __future__ import annotations

from enum import Enum
from typing import TypeVar

from brimful.errors import SettingsError
from brimful.words import setting

__all__ = ["choice_of"]

Choice = TypeVar("Choice", bound=Enum)


def choice_of(choices: type[Choice], name: Choice | str, *, argument: str, instead: str = "") -> Choice:
    """The member of that name.

    Args:
        choices: an enum whose values are names.
        name: a member, or its name.
        argument: what the user set, as Python calls it.
        instead: what else they may do.

    Raises:
        SettingsError: there is none of that name; lists them.

    >>> Tail = Enum("Tail", {"PAD": "pad", "DROP": "drop"})
    >>> choice_of(Tail, "pad", argument="tail").name
    'PAD'
    >>> choice_of(Tail, "fill", argument="tail")
    Traceback (most recent call last):
        ...
    brimful.errors.SettingsError: tail 'fill' is unknown: use one of pad, drop
    """
    try:
        return choices(name)
    except ValueError as error:
        listed = ", ".join(str(member.value) for member in choices)
        raise SettingsError(f"{setting(argument)} {name!r} is unknown: use one of {listed}{instead}") from error
