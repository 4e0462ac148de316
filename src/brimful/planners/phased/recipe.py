"""Recipes: sequences of phases, run and counted, written and read as one line of text."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any

from brimful.base.checks import check_type
from brimful.base.wording import counted, setting
from brimful.errors import SettingsError
from brimful.plan.algorithms import CountOptions
from brimful.plan.counts.histogram import Histogram
from brimful.plan.counts.runs import PackRuns
from brimful.plan.packing import PackResult, PlanOutcome
from brimful.planners.patterns import PatternRun, load_of, runs_of
from brimful.planners.phased.phase import (
    CapacityRatio,
    Finish,
    Half,
    Lengths,
    Phase,
    Placed,
    SeedRule,
    SizeRange,
    TopN,
)
from brimful.planners.phased.powers_of_two import PowersOfTwo
from brimful.planners.phased.seed_and_fill import Seeded

_PHASES: dict[str, type[PowersOfTwo | SeedRule | Finish]] = {
    phase.name: phase
    for phase in (PowersOfTwo, Half, TopN, SizeRange, CapacityRatio, Lengths, Finish)
}
"""Phases, and rules of the phase ``Seeded``, by name."""


def _read_phase(text: str) -> Phase:
    name, bracket, ending = (piece.strip() for piece in text.partition("("))
    if name not in _PHASES or bool(bracket) != ending.endswith(")"):
        raise SettingsError(
            f"{setting('phases')}: {text.strip()!r} is not a phase: write name or "
            f"name(setting=value, …), with some of {', '.join(_PHASES)}"
        )
    phase_class = _PHASES[name]
    own_keys = [field.name for field in fields(phase_class)]
    # The settings of a seed rule are written together with the settings of its phase.
    keys = own_keys[:]
    if issubclass(phase_class, SeedRule):
        keys += [field.name for field in fields(Seeded)[1:]]
    settings: dict[str, Any] = {}
    arguments = ending.removesuffix(")")
    for argument in arguments.split(",") if arguments.strip() else []:
        key, _, value = (piece.strip() for piece in argument.partition("="))
        if not value:
            raise SettingsError(
                f"{setting('phases')}: {argument.strip()!r} in {name}(…) is not a setting: write "
                "setting=value"
            )
        if key not in keys:
            raise SettingsError(
                f"{setting('phases')}: {name} has no setting {key!r}: use some of {', '.join(keys)}"
            )
        if key in settings:
            raise SettingsError(f"{setting('phases')}: {name} has {key} twice: keep one")
        settings[key] = _read_value(value)
    own_settings = {key: settings.pop(key) for key in own_keys if key in settings}
    phase = phase_class(**own_settings)
    return Seeded(phase, **settings) if isinstance(phase, SeedRule) else phase


def _read_value(text: str) -> Any:
    """Read one value by its form; each setting later checks its type."""
    if text in ("true", "false"):
        return text == "true"
    for reader in (int, float, lambda value_text: tuple(map(int, value_text.split()))):
        with suppress(ValueError):
            return reader(text)
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


def _report(phase: Phase, placed: Placed, capacity: int) -> str:
    """Return one line on a phase: its packs, their fill, and the items that it passed on."""
    packs = sum(count for _, count in placed.packs)
    result = "no packs"
    if packs:
        items = sum(count * sum(copies for _, copies in pattern) for pattern, count in placed.packs)
        tokens = sum(load_of(pattern) * count for pattern, count in placed.packs)
        least_load = min(load_of(pattern) for pattern, _ in placed.packs)
        result = (
            f"{counted(packs, 'pack')} of {counted(items, 'item')}, fill "
            f"{100 * tokens / (packs * capacity):.2f} %, least {100 * least_load / capacity:.2f} %"
        )
    note = f" ({placed.note})" if placed.note else ""
    return f"{phase}: {result}; {counted(placed.left.num_items, 'item')} left{note}"


@dataclass(frozen=True)
class Phased:
    """The result of a recipe: the packs in the order of the phases, and a line on each phase."""

    runs: PackRuns
    reports: tuple[str, ...]

    def describe(self) -> list[str]:
        """Return one line for each phase."""
        return list(self.reports)


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
        finishes = [
            index for index, phase in enumerate(self.phases, 1) if isinstance(phase, Finish)
        ]
        if finishes != [len(self.phases)]:
            raise SettingsError(
                f"{setting('phases')} must end with finish, and have it only there, or items would "
                f"be left without a pack, and is {str(self) or 'empty'}"
            )

    @classmethod
    def parse(cls, text: str) -> Recipe:
        """Read a recipe from text: phases separated by ``;``, each ``name`` or
        ``name(setting=value, …)``.

        See docs/phased-recipe.md.

        Raises:
            SettingsError: names the wrong word and the choices.
        """
        phases = text.strip().removesuffix(";").split(";")
        return cls(map(_read_phase, phases))

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
        reports: list[str] = []
        for phase in self.phases:
            placed = phase.place(items, capacity=capacity)
            packs += placed.packs
            reports.append(_report(phase, placed, capacity))
            items = placed.left
        assert items.num_items == 0, "the last phase left items"
        return Phased(runs_of(packs), tuple(reports))


def recipe_of(phases: Recipe | str | None) -> Recipe:
    """Read the setting ``phases``: a recipe, its text, or None for the default."""
    if phases is None:
        return Recipe.default()
    check_type("phases", phases, (str, Recipe), "a Recipe, or its text such as 'half; finish'")
    return Recipe.parse(phases) if isinstance(phases, str) else phases


def pack_counts(items: Histogram, options: CountOptions, bound: int) -> PackResult[PackRuns]:
    """Pack as the algorithm ``phased`` of ``plan.algorithms``."""
    phased = options.phases.run(items, capacity=options.capacity)
    return PackResult(phased.runs, bound, PlanOutcome(phase_reports=tuple(phased.describe())))
