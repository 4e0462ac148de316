"""Recipes: sequences of phases, run and counted, written and read as one line of text."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, fields
from typing import Any

from brimful.base.wording import counted, setting
from brimful.errors import SettingsError
from brimful.plan.counts.histogram import Histogram
from brimful.plan.counts.patterns import PatternRun, load_of, runs_of
from brimful.plan.counts.runs import PackRuns
from brimful.plan.phased.phase import Finish, Phase, Placed
from brimful.plan.phased.powers_of_two import PowersOfTwo
from brimful.plan.phased.seed_and_fill import Seeded
from brimful.plan.phased.seed_rules import CapacityRatio, Half, Lengths, SeedRule, SizeRange, TopN

_KINDS: dict[str, type[PowersOfTwo | SeedRule | Finish]] = {
    kind.name: kind for kind in (PowersOfTwo, Half, TopN, SizeRange, CapacityRatio, Lengths, Finish)
}
"""Phases, and rules of the phase ``Seeded``, by name."""

# A name, then everything up to the last parenthesis: the text between parentheses is split and
# checked afterward.
_PHASE = re.compile(r"\s*([^\s()]+)\s*(?:\((.*)\))?\s*", re.DOTALL)
_WHOLE = re.compile(r"[0-9]{1,18}")
_DECIMAL = re.compile(r"[0-9]+\.[0-9]*(?:e-?[0-9]{1,3})?|[0-9]+e-?[0-9]{1,3}", re.IGNORECASE)


def read_phases(text: str) -> list[Phase]:
    """Read the phases of a recipe; ``Recipe`` checks their order.

    >>> read_phases("top_n(n=20, min_items=4); finish")[1]
    Finish(min_fill=None, every=1, last=None, seeds_per_length=10)

    Raises:
        SettingsError: names the wrong word and the choices.
    """
    parts = text.split(";")
    if len(parts) > 1 and not parts[-1].strip():
        parts.pop()
    return [_read_phase(part) for part in parts]


def _read_phase(text: str) -> Phase:
    match = _PHASE.fullmatch(text)
    if match is None:
        raise SettingsError(
            f"{setting('phases')}: {text.strip()!r} is not a phase: write name or "
            "name(setting=value, …)"
        )
    name, arguments = match.group(1), match.group(2) or ""
    if name not in _KINDS:
        raise SettingsError(
            f"{setting('phases')}: {name!r} is not a phase: use some of {', '.join(_KINDS)}"
        )
    kind = _KINDS[name]
    keys = [field.name for field in fields(kind)]
    if not issubclass(kind, SeedRule):
        return kind(**_read_settings(name, arguments, keys))

    # A seed rule: its own settings are written together with the settings of its phase.
    settings = _read_settings(
        name, arguments, [*keys, *(field.name for field in fields(Seeded)[1:])]
    )
    if kind is Lengths and "lengths" not in settings:
        raise SettingsError(
            f"{setting('phases')}: {text.strip()!r} names no lengths: write lengths(lengths=300 "
            "400 500)"
        )
    rule = kind(**{key: settings.pop(key) for key in keys if key in settings})
    return Seeded(rule, **settings)


def _read_settings(name: str, arguments: str, keys: list[str]) -> dict[str, Any]:
    """Read ``key=value, …``; the name of the phase is for messages."""
    settings: dict[str, Any] = {}
    for part in arguments.split(",") if arguments.strip() else []:
        key, equals, value = (word.strip() for word in part.partition("="))
        if not equals or not value:
            raise SettingsError(
                f"{setting('phases')}: {part.strip()!r} in {name}(…) is not a setting: write "
                "setting=value"
            )
        if key not in keys:
            raise SettingsError(
                f"{setting('phases')}: {name} has no setting {key!r}: use some of {', '.join(keys)}"
            )
        if key in settings:
            raise SettingsError(f"{setting('phases')}: {name} has {key} twice: keep one")
        settings[key] = _read_value(value)
    return settings


def _read_value(text: str) -> Any:
    """Read one value by its form; each setting later checks its type."""
    if text in ("true", "false"):
        return text == "true"
    if _WHOLE.fullmatch(text):
        return int(text)
    if _DECIMAL.fullmatch(text):
        return float(text)
    words = text.split()
    if len(words) > 1 and all(_WHOLE.fullmatch(word) for word in words):
        return tuple(map(int, words))
    return text


_DEFAULT = """
powers_of_two;
half(threshold=mean,min_items=1,min_fill=0.96);
half(threshold=mean,min_items=1,min_fill=0.95);
half(threshold=mean,min_items=8,min_fill=0.9);
half(threshold=mean,min_items=4,min_fill=0.92);
half(threshold=mean,min_items=6,min_fill=0.92);
half(threshold=mean,min_items=4,min_fill=0.9);
top_n(n=20,min_items=4,min_fill=0.9,rounds=5,min_placed=3000,only_over=10000);
half(threshold=mean,min_items=4,min_fill=0.9,rounds=2,only_over=10000);
finish(min_fill=0.95,every=5,last=20)
"""


@dataclass(frozen=True)
class PhaseReport:
    """The result of one phase in numbers.

    Attributes:
        phase: the phase as text.
        packs, items, tokens: number of packs that the phase made, and their content.
        mean_fill, least_fill: fill of its packs, from 0 to 1; None if it made no packs.
        items_left, tokens_left: number of items that it passed on, and their tokens.
        note: reason why it did nothing, or less than it might.
    """

    phase: str
    packs: int
    items: int
    tokens: int
    mean_fill: float | None
    least_fill: float | None
    items_left: int
    tokens_left: int
    note: str

    @classmethod
    def of(cls, phase: Phase, placed: Placed, capacity: int) -> PhaseReport:
        """Count the packs and items of one phase."""
        loads = [load_of(pattern) for pattern, _ in placed.packs]
        packs = sum(number for _, number in placed.packs)
        tokens = sum(load * number for load, (_, number) in zip(loads, placed.packs, strict=True))
        return cls(
            phase=str(phase),
            packs=packs,
            items=sum(
                number * sum(copies for _, copies in pattern) for pattern, number in placed.packs
            ),
            tokens=tokens,
            mean_fill=tokens / (packs * capacity) if packs else None,
            least_fill=min(loads) / capacity if packs else None,
            items_left=placed.left.num_items,
            tokens_left=placed.left.total,
            note=placed.note,
        )

    def __str__(self) -> str:
        if self.mean_fill is None or self.least_fill is None:
            result = "no packs"
        else:
            result = (
                f"{counted(self.packs, 'pack')} of {counted(self.items, 'item')}, fill "
                f"{100 * self.mean_fill:.2f} %, least {100 * self.least_fill:.2f} %"
            )
        return f"{self.phase}: {result}; {counted(self.items_left, 'item')} left" + (
            f" ({self.note})" if self.note else ""
        )


@dataclass(frozen=True)
class Phased:
    """The result of a recipe: the packs in the order of the phases, and a report of each phase."""

    runs: PackRuns
    reports: tuple[PhaseReport, ...]

    def describe(self) -> list[str]:
        """Return one line for each phase."""
        return [str(report) for report in self.reports]


@dataclass(frozen=True)
class Recipe:
    """Phases in order; the last phase packs all remaining items.

    >>> recipe = Recipe.parse("powers_of_two; half(min_fill=0.9); finish")
    >>> print(recipe)
    powers_of_two; half(min_fill=0.9); finish
    >>> import numpy as np
    >>> result = recipe.run(Histogram.of(np.array([8, 8, 4, 4, 7, 6, 5, 3, 2])), capacity=8)
    >>> print("\\n".join(result.describe()))
    powers_of_two: 3 packs of 4 items, fill 100.00 %, least 100.00 %; 5 items left
    half(min_fill=0.9): 2 packs of 4 items, fill 100.00 %, least 100.00 %; 1 item left
    finish: 1 pack of 1 item, fill 87.50 %, least 87.50 %; 0 items left

    Raises:
        SettingsError: no phases, or ``finish`` is not exactly the last phase: items would be left
            over.
    """

    phases: tuple[Phase, ...]

    def __init__(self, phases: Iterable[Phase]) -> None:
        # The generated __init__ would keep an iterator, which is empty after the first run.
        object.__setattr__(self, "phases", tuple(phases))
        for phase in self.phases:
            if not isinstance(phase, Phase):
                raise SettingsError(
                    "a recipe is made of phases such as PowersOfTwo() and Finish(), not of "
                    f"{phase!r}"
                )
        if not self.phases or not isinstance(self.phases[-1], Finish):
            end = f"ends with {self.phases[-1]}" if self.phases else "is empty"
            raise SettingsError(
                f"{setting('phases')} {end}: add finish at the end, or items would be left without "
                "a pack"
            )
        if any(isinstance(phase, Finish) for phase in self.phases[:-1]):
            raise SettingsError(
                f"{setting('phases')} has finish before its end, which leaves nothing for later "
                "phases: remove it"
            )

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """Read a recipe from text: phases separated by ``;``, each ``name`` or
        ``name(setting=value, …)``.

        See docs/phased-recipe.md.

        Raises:
            SettingsError: names the wrong word and the choices.
        """
        return cls(read_phases(text))

    @classmethod
    def default(cls) -> Recipe:
        """Return the recipe that LLaVA-OneVision-1.5 published: its phases, their order and their
        settings.
        """
        return cls.parse(_DEFAULT)

    def __str__(self) -> str:
        return "; ".join(map(str, self.phases))

    def run(self, items: Histogram, *, capacity: int) -> Phased:
        """Let each phase pack some of the items that earlier phases left.

        Pure: no I/O, no randomness: the result is a function of the counts.

        Args:
            items: number of items of each length, none longer than the capacity.
            capacity: maximum tokens of a pack, at least 1.

        Cost: O(phases · distinct lengths · lengths in a pack), for any number of items.
        """
        packs: list[PatternRun] = []
        reports: list[PhaseReport] = []
        for phase in self.phases:
            placed = phase.place(items, capacity=capacity)
            report = PhaseReport.of(phase, placed, capacity)
            # A phase may be the user's own: check that no item is lost or packed twice.
            assert report.items + report.items_left == items.num_items, f"{phase} lost items"
            assert report.tokens + report.tokens_left == items.total, f"{phase} lost tokens"
            packs += placed.packs
            reports.append(report)
            items = placed.left
        assert items.num_items == 0, "the last phase left items"
        return Phased(runs_of(packs), tuple(reports))
