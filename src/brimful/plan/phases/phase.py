"""What a phase is: counts in, packs and the counts that remain out; and how its settings are checked and written."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass, fields
from fractions import Fraction
from typing import Any, TypeAlias

import numpy as np

from brimful.errors import SettingsError
from brimful.messages import setting
from brimful.plan.histogram import Histogram
from brimful.plan.patterns import Pattern

__all__ = [
    "Packs",
    "Phase",
    "Placed",
    "Settings",
    "check_share",
    "check_whole",
    "complaint",
    "tokens_of",
    "without",
]

Packs: TypeAlias = list[tuple[Pattern, int]]
"""Patterns in the order in which they were made, each with the number of packs that hold it."""


@dataclass(frozen=True)
class Placed:
    """What a phase did.

    Attributes:
        packs: what it made; none is over the capacity.
        left: the items that are in none of them.
        note: why it did nothing, or less than it might; empty if there is nothing to say.
    """

    packs: Packs
    left: Histogram
    note: str = ""


@dataclass(frozen=True)
class Settings:
    """A frozen dataclass that writes itself as ``name(setting=value,…)``, settings at their default left out."""

    @property
    def name(self) -> str:
        """What ``Recipe.parse`` calls it."""
        raise NotImplementedError

    def changed(self) -> dict[str, Any]:
        """Settings that are not at their default, in the order of the class."""
        found = {field.name: getattr(self, field.name) for field in fields(self)}
        defaults = {field.name: field.default for field in fields(self)}
        return {name: value for name, value in found.items() if value != defaults[name]}

    def __str__(self) -> str:
        written = ",".join(f"{name}={_written(value)}" for name, value in self.changed().items())
        return f"{self.name}({written})" if written else self.name


def _written(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return repr(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Phase(Settings, ABC):
    """One step of a recipe. Pure: no I/O, no clock, no randomness; cost by distinct lengths, not by items."""

    @abstractmethod
    def place(self, items: Histogram, *, capacity: int) -> Placed:
        """Make packs of some of the items.

        Args:
            items: what earlier phases left, none longer than the capacity.
            capacity: most that a pack holds, at least 1.
        """


def complaint(phase: str, name: str, wanted: str, value: object) -> SettingsError:
    """The error for one setting of one phase.

    >>> print(complaint("half", "min_fill", "from 0 to 1", 96))
    phases half(min_fill=…) must be from 0 to 1 and is 96
    """
    return SettingsError(f"{setting('phases')} {phase}({name}=…) must be {wanted} and is {value!r}")


def check_whole(phase: Settings, *names: str, least: int) -> None:
    """Settings that must be whole numbers of at least ``least``, or None where that is their default."""
    defaults = {field.name: field.default for field in fields(phase)}
    for name in names:
        value = getattr(phase, name)
        if value is None and defaults[name] is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
            raise complaint(phase.name, name, f"a whole number of at least {least}", value)
        object.__setattr__(phase, name, int(value))


def check_share(phase: Settings, *names: str) -> None:
    """Settings that must be from 0 to 1, or None where that is their default."""
    defaults = {field.name: field.default for field in fields(phase)}
    for name in names:
        value = getattr(phase, name)
        if value is None and defaults[name] is None:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 1:
            raise complaint(phase.name, name, "from 0 to 1", value)
        object.__setattr__(phase, name, float(value))


def tokens_of(share: float, capacity: int) -> Fraction:
    """That share of the capacity, exactly, by the decimal number that was written.

    >>> tokens_of(0.07, 100)  # 0.07 * 100 is 7.000000000000001 in floating point
    Fraction(7, 1)
    """
    return Fraction(repr(float(share))) * capacity


def without(items: Histogram, packs: Iterable[tuple[Pattern, int]]) -> Histogram:
    """The items that these packs do not hold."""
    left = dict(zip(items.lengths.tolist(), items.counts.tolist(), strict=True))
    for pattern, times in packs:
        for length, copies in pattern:
            left[length] -= copies * times
    counts = np.fromiter(left.values(), dtype=np.int64, count=len(left))
    assert not len(counts) or int(counts.min()) >= 0, "a phase packed more items than there are"
    return Histogram(items.lengths[counts > 0], counts[counts > 0])
