"""Which lengths open packs: one small rule each. A rule says nothing about how full a pack must be."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from brimful.plan.phases.phase import Settings, check_share, check_whole, complaint, tokens_of
from brimful.typing import BoolArray, Int64Array

__all__ = ["CapacityRatio", "Half", "Lengths", "SeedRule", "SizeRange", "TopN"]


@dataclass(frozen=True)
class SeedRule(Settings, ABC):
    """Chooses seed lengths among those that are left; all others are fillers."""

    @abstractmethod
    def choose(self, lengths: Int64Array, *, capacity: int) -> BoolArray:
        """``bool[d]``: which of the distinct lengths (``int64[d]``, ascending, at least one) are seeds."""


@dataclass(frozen=True)
class Half(SeedRule):
    """Lengths of at least half the capacity, or of at least a threshold.

    Attributes:
        threshold: None for half the capacity; ``mean`` for the mean of the distinct lengths that are left, rounded
            down, which sinks from phase to phase; or a length.

    >>> Half().choose(np.array([3, 5, 9]), capacity=10).tolist()
    [False, True, True]
    >>> Half("mean").choose(np.array([3, 6, 12]), capacity=100).tolist()
    [False, False, True]
    """

    threshold: int | str | None = None

    def __post_init__(self) -> None:
        if isinstance(self.threshold, str):
            if self.threshold != "mean":
                raise complaint(self.name, "threshold", "a length or mean", self.threshold)
        else:
            check_whole(self, "threshold", least=1)

    @property
    def name(self) -> str:
        """``half``."""
        return "half"

    def choose(self, lengths: Int64Array, *, capacity: int) -> BoolArray:
        """See the class."""
        if self.threshold is None:
            return 2 * lengths >= capacity
        if isinstance(self.threshold, str):
            return lengths >= int(lengths.sum()) // len(lengths)
        return lengths >= self.threshold


@dataclass(frozen=True)
class TopN(SeedRule):
    """The ``n`` longest of the distinct lengths.

    >>> TopN(2).choose(np.array([3, 5, 9]), capacity=10).tolist()
    [False, True, True]
    """

    n: int = 5

    def __post_init__(self) -> None:
        check_whole(self, "n", least=1)

    @property
    def name(self) -> str:
        """``top_n``."""
        return "top_n"

    def choose(self, lengths: Int64Array, *, capacity: int) -> BoolArray:
        """See the class."""
        return np.arange(len(lengths)) >= max(0, len(lengths) - self.n)


@dataclass(frozen=True)
class SizeRange(SeedRule):
    """Lengths from ``least`` to ``most``, both included.

    Attributes:
        least: None for a third of the capacity.
        most: None for the capacity.

    >>> SizeRange(most=5).choose(np.array([3, 5, 9]), capacity=10).tolist()
    [False, True, False]
    """

    least: int | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        check_whole(self, "least", "most", least=1)
        if self.least is not None and self.most is not None and self.least > self.most:
            raise complaint(self.name, "least", f"at most most={self.most}", self.least)

    @property
    def name(self) -> str:
        """``size_range``."""
        return "size_range"

    def choose(self, lengths: Int64Array, *, capacity: int) -> BoolArray:
        """See the class."""
        lowest = 3 * lengths >= capacity if self.least is None else lengths >= self.least
        chosen: BoolArray = lowest & (lengths <= (capacity if self.most is None else self.most))
        return chosen


@dataclass(frozen=True)
class CapacityRatio(SeedRule):
    """Lengths from one share of the capacity to another, both included. It chooses seeds and leaves ``min_fill`` alone.

    >>> CapacityRatio(least=0.5, most=0.8).choose(np.array([3, 5, 9]), capacity=10).tolist()
    [False, True, False]
    """

    least: float = 0.3
    most: float = 1.0

    def __post_init__(self) -> None:
        check_share(self, "least", "most")
        if self.least > self.most:
            raise complaint(self.name, "least", f"at most most={self.most}", self.least)

    @property
    def name(self) -> str:
        """``capacity_ratio``."""
        return "capacity_ratio"

    def choose(self, lengths: Int64Array, *, capacity: int) -> BoolArray:
        """See the class."""
        shortest, longest = ceil(tokens_of(self.least, capacity)), floor(tokens_of(self.most, capacity))
        return (lengths >= shortest) & (lengths <= longest)


@dataclass(frozen=True)
class Lengths(SeedRule):
    """These lengths and no others.

    >>> Lengths((3, 4, 9)).choose(np.array([3, 5, 9]), capacity=10).tolist()
    [True, False, True]
    """

    lengths: tuple[int, ...]

    def __post_init__(self) -> None:
        given = self.lengths
        values = (given,) if isinstance(given, (int, np.integer)) else tuple(given)
        whole = all(isinstance(value, (int, np.integer)) and not isinstance(value, bool) for value in values)
        if not values or not whole or min(values) < 1:
            raise complaint(self.name, "lengths", "lengths of at least 1, such as 300 400 500", given)
        object.__setattr__(self, "lengths", tuple(sorted({int(value) for value in values})))

    @property
    def name(self) -> str:
        """``lengths``."""
        return "lengths"

    def choose(self, lengths: Int64Array, *, capacity: int) -> BoolArray:
        """See the class."""
        return np.isin(lengths, np.array([length for length in self.lengths if length <= capacity], dtype=np.int64))
