"""Micro-batches by a budget of tokens: which samples go together, while samples still come in."""

from __future__ import annotations

from dataclasses import KW_ONLY, asdict, dataclass
from enum import Enum
from typing import Any

import numpy as np

from brimful.checks import choice_of
from brimful.errors import SettingsError
from brimful.plan import Overflow

__all__ = ["Count", "Fit", "SampleCount", "TokenBudget", "Warmup"]


class Count(str, Enum):
    """What the budget counts."""

    TOTAL = "total"
    """Every token: equal work in every micro-batch."""
    LOSS_TOKENS = "loss_tokens"
    """Targets only: equal weight of every micro-batch in the loss. The capacity bounds the work."""


class Fit(str, Enum):
    """Which of the waiting samples join the one that waited longest, which always goes."""

    FIRST = "first"
    """In order, whatever still fits. What VeOmni does."""
    EXACT = "exact"
    """Some of the oldest, so few that waiting is short, that fill the budget to the last token where any do."""


@dataclass(frozen=True)
class Warmup:
    """The budget grows from ``start`` at step 0 to the whole at step ``steps``, linearly, rounded down.

    >>> [Warmup(steps=100, start=200).budget(step, 8192) for step in (0, 1, 50, 99, 100, 5000)]
    [200, 279, 4196, 8112, 8192, 8192]
    """

    _: KW_ONLY
    steps: int
    start: int = 200

    def __post_init__(self) -> None:
        _at_least_one("warmup", steps=self.steps, start=self.start)

    def budget(self, step: int, whole: int) -> int:
        """Tokens that a micro-batch of this step aims at."""
        return whole if step >= self.steps else (whole - self.start) * step // self.steps + self.start


@dataclass(frozen=True)
class TokenBudget:
    """As many samples as fit (``dyn_bsz`` on). The budget is what a micro-batch aims at; the capacity always holds.

    A sample above the budget but not above the capacity goes alone, as all do that are longer than a budget which
    is still warming up. A sample above the capacity is for the overflow policy.

    Args:
        tokens: the budget of one micro-batch, in what ``count`` counts.
        count: ``total`` or ``loss_tokens``.
        capacity: most tokens of any kind in one micro-batch. None: the budget itself; 1.5 of it for ``loss_tokens``.
        min_buffered: samples that wait before a micro-batch may leave (VeOmni's ``dyn_bsz_buffer_size``).
        warmup: how the budget grows over the first steps.
        fit: ``first`` or ``exact``.
        overflow: what becomes of a sample above the capacity (``Overflow``).

    >>> TokenBudget(4096, count="loss_tokens").capacity
    6144
    """

    tokens: int
    _: KW_ONLY
    count: Count = Count.TOTAL
    capacity: int = None  # type: ignore[assignment]  # becomes a number below
    min_buffered: int = 200
    warmup: Warmup | None = None
    fit: Fit = Fit.FIRST
    overflow: Overflow = Overflow.ERROR

    def __post_init__(self) -> None:
        put = object.__setattr__
        put(self, "count", choice_of(Count, self.count, argument="count"))
        put(self, "fit", choice_of(Fit, self.fit, argument="fit"))
        put(self, "overflow", Overflow.named(self.overflow))
        if self.capacity is None:
            _at_least_one("token budget", tokens=self.tokens)
            put(self, "capacity", self.tokens if self.count is Count.TOTAL else -(-3 * self.tokens // 2))
        _at_least_one("token budget", tokens=self.tokens, capacity=self.capacity, min_buffered=self.min_buffered)
        if self.capacity < self.tokens:
            raise SettingsError(
                f"capacity is {self.capacity:,} and the token budget {self.tokens:,}: a micro-batch that holds at most "
                f"capacity tokens cannot aim at more; raise capacity or lower the budget"
            )
        if self.warmup is not None and self.warmup.start > self.tokens:
            raise SettingsError(f"warmup starts at {self.warmup.start:,} tokens, above the budget of {self.tokens:,}")
        if self.fit is Fit.EXACT and self.count is not Count.TOTAL:
            raise SettingsError("fit='exact' fills a budget of all tokens: use count='total', or fit='first'")

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what a saved state is compared by."""
        plain = {key: value.value if isinstance(value, Enum) else value for key, value in asdict(self).items()}
        plain |= {key: int(plain[key]) for key in ("tokens", "capacity", "min_buffered")}
        return {"kind": "token_budget", **plain}


@dataclass(frozen=True)
class SampleCount:
    """A fixed number of samples, packed all the same (``dyn_bsz`` off): for fine-tuning, where samples count.

    Args:
        samples: of one micro-batch.
    """

    samples: int

    def __post_init__(self) -> None:
        _at_least_one("micro-batch", samples=self.samples)

    def as_dict(self) -> dict[str, Any]:
        """For JSON: what a saved state is compared by."""
        return {"kind": "sample_count", "samples": int(self.samples)}


def _at_least_one(what: str, **values: int) -> None:
    for name, value in values.items():
        if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < 1:
            raise SettingsError(f"{what}: {name} must be a whole number of at least 1 and is {value!r}")
