"""What brimful wrote, told by its path: commands that want something else say which command takes it."""

from __future__ import annotations

import os
from collections.abc import Iterable

from brimful.errors import BrimfulError, SettingsError
from brimful.remote import is_remote
from brimful.tables import open_table

__all__ = ["LENGTHS", "PLAN", "STORE", "kind_of", "refuse_as_data", "named"]

LENGTHS, PLAN, STORE = "length_table", "plan", "store"

_NAMES = {LENGTHS: "a length table", PLAN: "a plan", STORE: "a pack store"}
_TAKEN_BY = {LENGTHS: "plan", PLAN: "write", STORE: "inspect"}


def kind_of(path: str) -> str | None:
    """``LENGTHS``, ``PLAN``, ``STORE``, or None for anything that brimful did not write."""
    if is_remote(path):
        return None
    if os.path.isdir(path):
        return STORE if os.path.isfile(os.path.join(path, "stream.json")) else None
    if not os.path.isfile(path):
        return None
    try:
        kind = open_table(path).description.get("kind")
    except (BrimfulError, OSError):
        return None
    return str(kind) if kind in _NAMES else None


def named(path: str, *, but: str) -> str:
    """What a path is where something else is wanted: ``l.arrow is a length table and no plan``."""
    kind = kind_of(path)
    return f"{path} is {_NAMES[kind]} and no {but}" if kind is not None else f"{path} is no {but}"


def refuse_as_data(paths: Iterable[str]) -> None:
    """Refuse what brimful wrote where data is wanted.

    Raises:
        SettingsError: names the command that takes it.
    """
    for path in paths:
        kind = kind_of(path)
        if kind is not None:
            raise SettingsError(f"{named(path, but='data')}: `brimful {_TAKEN_BY[kind]}` takes it")
