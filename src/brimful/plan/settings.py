"""What a plan is made with: one frozen object that checks itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from brimful.checks import check_type
from brimful.errors import SettingsError
from brimful.messages import setting
from brimful.plan.alignment import Alignment
from brimful.plan.budgets import Budgets
from brimful.plan.no_target import NoTarget
from brimful.plan.overflow import Overflow
from brimful.plan.phased import Recipe

__all__ = ["ALGORITHMS", "BY_COUNTS", "IN_ORDER", "PlanSettings"]

BY_COUNTS = ("best_fit_decreasing", "first_fit_decreasing", "optimal", "auto", "phased")
"""Algorithms that look at how many samples have each length."""

IN_ORDER = ("next_fit", "first_fit", "best_fit", "worst_fit")
"""Algorithms that take the samples in their order."""

ALGORITHMS = (*BY_COUNTS, *IN_ORDER, "concat_split")
"""Names of the algorithms. Textbook names: what they do is what the books say."""

_ALIASES = {
    "bfd": "best_fit_decreasing",
    "ffd": "first_fit_decreasing",
    "sequential": "next_fit",
    "wrapped": "concat_split",
}
"""What others call them."""

_MAX_CAPACITY = 2**31 - 1

_FOUND = ("outcome", "solver", "phase_reports", "dropped_by", "packs_below_min_fill")
"""What planning adds to the settings."""


@dataclass(frozen=True, kw_only=True)
class PlanSettings:
    """The arguments of ``plan_packs``, checked, each in one form.

    Raises:
        SettingsError: an impossible value, or two that contradict each other; names the flags.
    """

    capacity: int
    algorithm: str
    overflow: Overflow | str
    no_target: NoTarget | str
    budgets: Mapping[str, int] | None
    alignment: Alignment | int
    min_fill: float
    phases: Recipe | str | None
    mix: bool
    seed: int | None
    epoch: int
    time_limit: float | None

    def __post_init__(self) -> None:
        put = object.__setattr__
        self._check_types()
        self._check_numbers()
        put(self, "capacity", int(self.capacity))
        put(self, "seed", None if self.seed is None else int(self.seed))
        put(self, "epoch", int(self.epoch))
        put(self, "min_fill", float(self.min_fill))
        put(self, "algorithm", _ALIASES.get(self.algorithm, self.algorithm))
        put(self, "overflow", Overflow.named(self.overflow))
        put(self, "no_target", NoTarget.named(self.no_target))
        if not isinstance(self.alignment, Alignment):
            put(self, "alignment", Alignment(segment=self.alignment))
        if self.algorithm not in ALGORITHMS:
            others = ", ".join(f"{alias} for {name}" for alias, name in _ALIASES.items())
            raise SettingsError(
                f"{setting('algorithm', self.algorithm)} is unknown: use one of {', '.join(ALGORITHMS)} (or {others})"
            )
        self.limits  # noqa: B018  (checks the budgets)
        self.usable  # noqa: B018  (checks the alignment)
        if self.algorithm == "phased":
            recipe = self.phases if isinstance(self.phases, Recipe) else None
            put(self, "phases", recipe or (Recipe.parse(str(self.phases)) if self.phases else Recipe.default()))
        elif self.phases is not None:
            raise SettingsError(
                f"{setting('phases')} is for {setting('algorithm', 'phased')}, and the algorithm is {self.algorithm}"
            )
        self._check_contradictions()

    def _check_types(self) -> None:
        check_type("algorithm", self.algorithm, str, "a name")
        if self.budgets is not None:
            check_type("budgets", self.budgets, Mapping, "a mapping such as {'patches': 4096}")
        if self.phases is not None:
            check_type("phases", self.phases, (str, Recipe), "a Recipe, or its text such as 'half; finish'")

    def _check_numbers(self) -> None:
        for name, value, least, most in (
            ("capacity", self.capacity, 1, _MAX_CAPACITY),
            ("seed", self.seed, None, None),
            ("epoch", self.epoch, 0, None),
        ):
            if value is None and name == "seed":
                continue
            if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
                raise SettingsError(f"{setting(name)} must be a whole number and is {value!r}")
            if (least is not None and value < least) or (most is not None and value > most):
                bounds = f"at least {least}" if most is None else f"from {least} to {most:,}"
                raise SettingsError(f"{setting(name)} must be {bounds} and is {value:,}")
        for name, share in (("min_fill", self.min_fill), ("time_limit", self.time_limit)):
            number = isinstance(share, (int, float, np.integer, np.floating)) and not isinstance(share, bool)
            if not number and (share is not None or name == "min_fill"):
                raise SettingsError(f"{setting(name)} must be a number and is {share!r}")
        if self.time_limit is not None and not self.time_limit >= 0:
            raise SettingsError(f"{setting('time_limit')} must be at least 0 seconds and is {self.time_limit}")
        if not 0 <= self.min_fill <= 1:
            raise SettingsError(
                f"{setting('min_fill')} is a share of the capacity, from 0 to 1, and is {self.min_fill}"
            )

    def _check_contradictions(self) -> None:
        chosen = setting("algorithm", self.algorithm)
        if self.budgets and self.algorithm != "auto":
            raise SettingsError(
                f"{chosen} knows tokens alone, and there is a budget of {next(iter(self.budgets))}: "
                f"use {setting('algorithm', 'auto')}"
            )
        if self.mix and self.seed is None:
            raise SettingsError(f"{setting('mix', True)} exchanges segments at random and needs a {setting('seed')}")
        if self.mix and self.budgets:
            raise SettingsError(
                f"{setting('mix', True)} exchanges segments by their tokens and would exceed {setting('budgets')}: "
                f"leave one out"
            )
        if self.mix and self.algorithm not in BY_COUNTS:
            raise SettingsError(f"{setting('mix', True)} would break the order that {chosen} keeps")
        if self.min_fill and self.algorithm in ("next_fit", "concat_split"):
            raise SettingsError(
                f"{setting('min_fill')} packs samples again and would break the order that {chosen} keeps: "
                f"leave one out"
            )
        if self.algorithm == "concat_split" and not self.aligned.is_none:
            raise SettingsError(
                f"{chosen} fills packs to the last token and leaves no room for {self.alignment}: "
                f"use {setting('overflow', 'split')} with another algorithm"
            )

    @property
    def policy(self) -> Overflow:
        """The overflow policy."""
        assert isinstance(self.overflow, Overflow)
        return self.overflow

    @property
    def untaught(self) -> NoTarget:
        """The policy for samples without a target."""
        assert isinstance(self.no_target, NoTarget)
        return self.no_target

    @property
    def aligned(self) -> Alignment:
        """The alignment."""
        assert isinstance(self.alignment, Alignment)
        return self.alignment

    @property
    def recipe(self) -> Recipe | None:
        """What ``phased`` does; None for another algorithm."""
        assert not isinstance(self.phases, str)
        return self.phases

    @property
    def limits(self) -> Budgets:
        """All budgets with their capacities."""
        return Budgets.of(self.capacity, self.budgets)

    @property
    def usable(self) -> int:
        """Most aligned tokens of a pack."""
        return self.aligned.usable(self.capacity)

    @staticmethod
    def asked(described: Mapping[str, Any]) -> dict[str, Any]:
        """Of a plan's settings, what was asked for beside the capacity; without what came of it."""
        return {key: value for key, value in described.items() if key not in ("capacity", *_FOUND)}

    def as_dict(self) -> dict[str, Any]:
        """For the plan's description: what was asked for; nothing that stayed as it is by default, but the basics."""
        described: dict[str, Any] = {
            "algorithm": self.algorithm,
            "overflow": self.policy.value,
            "seed": self.seed,
            "capacity": self.capacity,
        }
        if self.untaught is not NoTarget.ERROR:
            described["no_target"] = self.untaught.value
        if self.budgets:
            described["budgets"] = {name: int(most) for name, most in self.budgets.items()}
        if not self.aligned.is_none:
            described["alignment"] = {"segment": self.aligned.segment, "total": self.aligned.total}
        if self.min_fill:
            described["min_fill"] = self.min_fill
        if self.phases is not None:
            described["phases"] = str(self.phases)
        if self.mix:
            described["mix"] = True
        if self.epoch:
            described["epoch"] = self.epoch
        return described
