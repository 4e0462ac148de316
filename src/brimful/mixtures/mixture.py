"""The request of a mixture: one frozen object that checks its values."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from enum import Enum
from functools import cached_property
from typing import Any, ClassVar

from brimful.base.checks import check_type, choice_of, is_number, whole_number
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.plan.plan_settings import PlanSettings
from brimful.plan.policies.draw import Draw
from brimful.plan.policies.overflow import Overflow


class MixOrder(str, Enum):
    """The order of mixing and packing."""

    MIX_THEN_PACK = "mix_then_pack"
    """Samples are drawn, then packed together: samples of different sources share packs."""
    PACK_THEN_MIX = "pack_then_mix"
    """Each source is packed separately, then packs are drawn: a pack has one source."""


class MixUnit(str, Enum):
    """The quantity in which weights are shares."""

    SAMPLES = "samples"
    """A source of weight 0.3 gives three of ten samples, or packs with ``pack_then_mix``."""
    TOKENS = "tokens"
    """A source of weight 0.3 gives three of ten tokens, however long its samples are."""


class MixStop(str, Enum):
    """The end of an epoch."""

    FIRST_EXHAUSTED = "first_exhausted"
    """One source has been drawn once completely, or to its own limit, and its turn comes again."""
    ALL_EXHAUSTED = "all_exhausted"
    """Every source has been drawn once completely, or to its own limit; small sources are repeated
    meanwhile.
    """


class Weighting(str, Enum):
    """The effect of weights."""

    DRAWS = "draws"
    """Samples are drawn as often as the weights say."""
    LOSS = "loss"
    """Every sample is packed once; each target counts requested share ÷ present share
    (``mixture_loss_factors``).
    """


@dataclass(frozen=True, kw_only=True)
class Mixture(Draw):
    """A request for shares of sources, checked. Sources are named; weights need not add up to 1.

    Attributes:
        weights: weight of each source, at least 0. Their ratios are the requested shares; a source
            of weight 0 is not drawn.
        unit: the quantity that has these shares: ``samples`` or ``tokens``.
        order: ``mix_then_pack`` or ``pack_then_mix``.
        temperature: shares are proportional to weight^(1 ÷ temperature): values above 1 even them
            out, and infinity makes them equal.
        stop: the end of an epoch, unless one of the three targets below is set.
        num_samples: draws of an epoch, with repeats.
        num_tokens: an epoch ends with the draw that reaches this many tokens.
        num_packs: exact number of packs of an epoch, unless all sources run out before.
        max_samples: maximum draws in an epoch, by source.
        max_passes: maximum draws in an epoch as a multiple of the source's samples, by source: 1
            repeats no sample.
        replacement: draw each sample from the whole source, so that some may repeat before others
            occur.
        weighting: ``draws``, or ``loss`` to weight the loss of the tokens instead.

    Raises:
        SettingsError: no source, an impossible weight or limit, or two targets.

    >>> Mixture(weights={"chat": 3, "code": 1}, unit="tokens").shares
    {'chat': 0.75, 'code': 0.25}
    >>> Mixture(weights={"chat": 9, "code": 1}, temperature=2).shares
    {'chat': 0.75, 'code': 0.25}
    """

    key: ClassVar[str] = "mixture"
    packer: ClassVar[str] = "brimful.mixtures.pack_mixture:pack_mixture"

    weights: Mapping[str, float]
    unit: MixUnit | str = MixUnit.SAMPLES
    order: MixOrder | str = MixOrder.MIX_THEN_PACK
    temperature: float = 1.0
    stop: MixStop | str = MixStop.FIRST_EXHAUSTED
    num_samples: int | None = None
    num_tokens: int | None = None
    num_packs: int | None = None
    max_samples: Mapping[str, int] | None = None
    max_passes: Mapping[str, float] | None = None
    replacement: bool = False
    weighting: Weighting | str = Weighting.DRAWS

    def __post_init__(self) -> None:
        check_type("weights", self.weights, Mapping, "a mapping such as {'chat': 3, 'code': 1}")
        targets = {
            name: getattr(self, name) for name in _TARGETS if getattr(self, name) is not None
        }
        for name, value in targets.items():
            self.__dict__[name] = whole_number(f"{setting('mixture')}: {name}", value, minimum=1)
        for name, choices in _CHOICES.items():
            # The message names the mixture, because the names are keys of its file.
            self.__dict__[name] = choice_of(
                choices, getattr(self, name), argument="mixture", instead=f" for {name}"
            )
        if fault := self._fault(targets):
            raise SettingsError(f"{setting('mixture')}{fault}")
        self.__dict__["weights"] = {
            str(name): float(weight) for name, weight in self.weights.items()
        }
        for name in ("max_samples", "max_passes"):
            self.__dict__[name] = dict(getattr(self, name) or {}) or None

    def _fault(self, targets: Mapping[str, Any]) -> str:
        """Return words for the first value or combination that is impossible; empty without any."""
        if not self.weights:
            return " has no sources: give the weight of each"
        for name, weight in self.weights.items():
            if not is_number(weight) or not math.isfinite(weight) or weight < 0:
                return f": the weight of {name} must be a number of at least 0 and is {weight!r}"
        if not any(self.weights.values()):
            return ": all weights are 0: give one above 0"
        if not is_number(self.temperature) or not self.temperature > 0:
            return f": temperature must be a number above 0 and is {self.temperature!r}"
        if not isinstance(self.replacement, bool):
            return f": replacement must be true or false and is {self.replacement!r}"
        if len(targets) > 1:
            return f": {' and '.join(targets)} all end an epoch: keep one"
        for name, limits in (("max_samples", self.max_samples), ("max_passes", self.max_passes)):
            if limits is not None:
                check_type(name, limits, Mapping, "a mapping such as {'code': 2}")
            for source, limit in (limits or {}).items():
                if source not in self.weights:
                    return f": {name} names {source}, which has no weight"
                if not is_number(limit) or not math.isfinite(limit) or limit <= 0:
                    return f": {name} of {source} must be above 0 and is {limit!r}"
        if self.weighting is Weighting.LOSS and (
            targets
            or self.max_samples
            or self.max_passes
            or self.replacement
            or self.stop != MixStop.FIRST_EXHAUSTED
        ):
            return (
                ": weighting loss packs every sample once, and limits, targets, stop and "
                "replacement are for draws: leave them out"
            )
        return ""

    @cached_property
    def shares(self) -> dict[str, float]:
        """Requested share of each source, after the temperature; shares add up to 1."""
        largest = max(self.weights.values())
        powers = {
            name: (weight / largest) ** (1 / self.temperature) if weight else 0.0
            for name, weight in self.weights.items()
        }
        total = sum(powers.values())
        return {name: power / total for name, power in powers.items()}

    def allowance(self, name: str, num_elements: int) -> int | None:
        """Return the maximum draws of a source in an epoch; None for no limit of its own.

        >>> Mixture(weights={"a": 1}, max_passes={"a": 1.5}).allowance("a", 5)
        7
        """
        limits = []
        if self.max_samples and name in self.max_samples:
            limits.append(int(self.max_samples[name]))
        if self.max_passes and name in self.max_passes:
            limits.append(max(1, int(self.max_passes[name] * num_elements)))
        return min(limits) if limits else None

    @property
    def has_target(self) -> bool:
        """True if a number of samples, tokens or packs ends an epoch."""
        return any(getattr(self, name) is not None for name in _TARGETS)

    def check(self, settings: PlanSettings) -> None:
        """Refuse settings that cut or count samples in another way than draws do.

        Raises:
            SettingsError: names both settings.
        """
        if self.weighting is not Weighting.DRAWS:
            return
        mixture = setting("mixture")
        draws_packs = self.order is MixOrder.PACK_THEN_MIX or self.num_packs is not None
        for is_wrong, message in (
            (
                settings.shares,
                f"{setting('share', 'prefixes')} packs each sample once, and {mixture} draws some "
                "more often: use weighting loss, or leave one out",
            ),
            (
                settings.algorithm == "concat_split",
                f"{setting('algorithm', settings.algorithm)} cuts samples anywhere, and {mixture} "
                f"draws whole ones: use {setting('overflow', 'split')} with another algorithm, or "
                "weighting loss",
            ),
            (
                draws_packs and settings.overflow_policy is Overflow.SPLIT,
                f"{setting('overflow', 'split')} has parts of a sample in several packs, of which "
                f"{mixture} would draw some: use order mix_then_pack without num_packs, or another "
                "policy",
            ),
            (
                settings.num_packs is not None,
                f"{setting('num_packs')} is for a plan of all samples: with {mixture}, give "
                "num_packs there",
            ),
        ):
            if is_wrong:
                raise SettingsError(message)

    def describe(self, record: Mapping[str, Any]) -> str:
        """Return the line of a summary on all sources together."""
        from brimful.mixtures.proportions import describe_mixture

        return f"mixture        {describe_mixture(record, self.as_dict())}"

    def as_dict(self) -> dict[str, Any]:
        """Return the request for JSON: the weights, and values that differ from the defaults."""
        record: dict[str, Any] = {"weights": dict(self.weights)}
        for option in fields(self)[1:]:
            value = getattr(self, option.name)
            if value != option.default:
                record[option.name] = value.value if isinstance(value, Enum) else value
        return record


_TARGETS = ("num_samples", "num_tokens", "num_packs")
_CHOICES: Mapping[str, type[Enum]] = {
    "unit": MixUnit,
    "order": MixOrder,
    "stop": MixStop,
    "weighting": Weighting,
}
