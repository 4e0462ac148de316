"""Settings of micro-batches: a budget of tokens, or a number of samples."""

from dataclasses import KW_ONLY, asdict, dataclass
from enum import Enum
from typing import Any, ClassVar

from brimful.base.checks import choice_of, whole_number
from brimful.errors import SettingsError
from brimful.plan import Overflow


class Count(str, Enum):
    """Quantity that the budget limits."""

    TOTAL = "total"
    """Every token: equal work in every micro-batch."""
    LOSS_TOKENS = "loss_tokens"
    """Targets only: equal weight of every micro-batch in the loss. The capacity bounds the work."""


class Fit(str, Enum):
    """Rule that picks the waiting samples that join the oldest, which is always taken."""

    FIRST = "first"
    """Every sample that still fits, in order of arrival, as in VeOmni."""
    EXACT = "exact"
    """Samples that sum exactly to the budget, from the shortest run of the oldest; otherwise the
    largest sum.
    """


@dataclass(frozen=True)
class Warmup:
    """Growth of the budget over the first steps: budget(step) = start + ⌊(whole − start) · step ÷
    steps⌋.

    >>> [Warmup(steps=100, start=200).budget(step, 8192) for step in (0, 1, 50, 99, 100, 5000)]
    [200, 279, 4196, 8112, 8192, 8192]
    """

    _: KW_ONLY
    steps: int
    start: int = 200

    def __post_init__(self) -> None:
        _check_positive("warmup", steps=self.steps, start=self.start)

    def budget(self, step: int, whole: int) -> int:
        """Return the budget of a step, where ``whole`` is the full budget."""
        return (
            whole if step >= self.steps else (whole - self.start) * step // self.steps + self.start
        )


@dataclass(frozen=True)
class TokenBudget:
    """Micro-batches that samples fill up to a budget of tokens (``dyn_bsz`` on). The capacity is
    never exceeded.

    A sample above the budget but not above the capacity forms a micro-batch alone, also if the
    budget is still warming up. The overflow policy handles a sample above the capacity.

    Args:
        tokens: budget of one micro-batch, in tokens or targets (``count``).
        count: ``total`` or ``loss_tokens``.
        capacity: maximum number of tokens of any kind in one micro-batch; if None, the budget
            itself, or 1.5 times the budget for ``loss_tokens``.
        min_buffered: minimum number of waiting samples before a micro-batch is served (VeOmni's
            ``dyn_bsz_buffer_size``).
        warmup: growth of the budget over the first steps.
        fit: ``first`` or ``exact``.
        overflow: treatment of a sample above the capacity (``Overflow``).

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
        assign = object.__setattr__  # sets a field of a frozen object
        assign(self, "count", choice_of(Count, self.count, argument="count"))
        assign(self, "fit", choice_of(Fit, self.fit, argument="fit"))
        assign(self, "overflow", Overflow.named(self.overflow))
        _check_positive("token budget", tokens=self.tokens)
        # Targets are often the smaller part of a sample: 1.5 times the budget leaves room for the
        # other tokens.
        if self.capacity is None:
            assign(
                self,
                "capacity",
                self.tokens if self.count is Count.TOTAL else -(-3 * self.tokens // 2),
            )
        _check_positive("token budget", capacity=self.capacity, min_buffered=self.min_buffered)
        if self.capacity < self.tokens:
            raise SettingsError(
                f"capacity is {self.capacity:,} and the token budget {self.tokens:,}: a "
                "micro-batch that holds at most capacity tokens cannot aim at more; raise "
                "capacity or lower the budget"
            )
        if self.warmup is not None and self.warmup.start > self.tokens:
            raise SettingsError(
                f"warmup starts at {self.warmup.start:,} tokens, above the budget of "
                f"{self.tokens:,}"
            )
        if self.fit is Fit.EXACT and self.count is not Count.TOTAL:
            raise SettingsError(
                "fit='exact' fills a budget of all tokens: use count='total', or fit='first'"
            )

    def as_dict(self) -> dict[str, Any]:
        """Return the settings for JSON, as they are stored and compared in saved states."""
        plain = {
            key: value.value if isinstance(value, Enum) else value
            for key, value in asdict(self).items()
        }
        plain |= {key: int(plain[key]) for key in ("tokens", "capacity", "min_buffered")}
        return {"kind": "token_budget", **plain}


@dataclass(frozen=True)
class SampleCount:
    """Micro-batches of a fixed number of samples, still packed (``dyn_bsz`` off): for fine-tuning.

    Args:
        samples: number of samples in one micro-batch.
    """

    capacity: ClassVar[int | None] = None
    overflow: ClassVar[Overflow] = Overflow.ERROR
    samples: int

    def __post_init__(self) -> None:
        _check_positive("micro-batch", samples=self.samples)

    def as_dict(self) -> dict[str, Any]:
        """Return the settings for JSON, as they are stored and compared in saved states."""
        return {"kind": "sample_count", "samples": int(self.samples)}


def _check_positive(title: str, **values: int) -> None:
    for name, value in values.items():
        whole_number(f"{title}: {name}", value, minimum=1)
