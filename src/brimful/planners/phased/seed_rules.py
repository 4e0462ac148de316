"""Rules that choose the lengths that open packs. A rule does not say how full a pack must be."""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import ceil, floor

import numpy as np

from brimful.base.checks import is_whole_number, whole_number
from brimful.base.typing import BoolArray, Int64Array
from brimful.plan.packing import tokens_of
from brimful.planners.phased.phase import Settings


@dataclass(frozen=True)
class SeedRule(Settings, ABC):
    """A choice of seed lengths from the remaining lengths; all others are fillers."""

    @abstractmethod
    def choose(self, lengths: Int64Array, *, capacity: int) -> BoolArray:
        """Mark the seeds among the distinct lengths.

        Args:
            lengths: ``int64[d]``, distinct lengths of the remaining items, ascending, at least one.
            capacity: maximum tokens of a pack.

        Returns:
            ``bool[d]``: true for a seed.
        """


@dataclass(frozen=True)
class Half(SeedRule):
    """Lengths of at least half the capacity, or of at least a threshold.

    Attributes:
        threshold: None for half the capacity; ``mean`` for the mean of the remaining distinct
            lengths, rounded down, which falls from phase to phase; or a length.

    >>> Half().choose(np.array([3, 5, 9]), capacity=10).tolist()
    [False, True, True]
    >>> Half("mean").choose(np.array([3, 6, 12]), capacity=100).tolist()
    [False, False, True]
    """

    name = "half"

    threshold: int | str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.threshold not in (None, "mean"):
            if isinstance(self.threshold, str):
                raise self.complaint("threshold", "a length or mean")
            whole_number(self._label("threshold"), self.threshold, minimum=1)

    def choose(self, lengths: Int64Array, *, capacity: int) -> BoolArray:
        """See the class."""
        # Compare whole numbers: half of an odd capacity would be rounded.
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

    name = "top_n"

    n: int = 5

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

    name = "size_range"

    least: int | None = None
    most: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least is not None and self.most is not None and self.least > self.most:
            raise self.complaint("least", f"at most most={self.most}")

    def choose(self, lengths: Int64Array, *, capacity: int) -> BoolArray:
        """See the class."""
        is_long_enough = 3 * lengths >= capacity if self.least is None else lengths >= self.least
        is_seed: BoolArray = is_long_enough & (
            lengths <= (capacity if self.most is None else self.most)
        )
        return is_seed


@dataclass(frozen=True)
class CapacityRatio(SeedRule):
    """Lengths from one share of the capacity to another, both included. It is independent of
    ``min_fill``.

    >>> CapacityRatio(least=0.5, most=0.8).choose(np.array([3, 5, 9]), capacity=10).tolist()
    [False, True, False]
    """

    name = "capacity_ratio"

    least: float = 0.3
    most: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.least > self.most:
            raise self.complaint("least", f"at most most={self.most}")

    def choose(self, lengths: Int64Array, *, capacity: int) -> BoolArray:
        """See the class."""
        shortest, longest = (
            ceil(tokens_of(self.least, capacity)),
            floor(tokens_of(self.most, capacity)),
        )
        return (lengths >= shortest) & (lengths <= longest)


@dataclass(frozen=True)
class Lengths(SeedRule):
    """Exactly these lengths.

    >>> Lengths((3, 4, 9)).choose(np.array([3, 5, 9]), capacity=10).tolist()
    [True, False, True]
    """

    name = "lengths"

    lengths: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        values = (
            (self.lengths,) if isinstance(self.lengths, (int, np.integer)) else tuple(self.lengths)
        )
        if not values or not all(map(is_whole_number, values)) or min(values) < 1:
            raise self.complaint("lengths", "lengths of at least 1, such as 300 400 500")
        object.__setattr__(self, "lengths", tuple(sorted({int(value) for value in values})))

    def choose(self, lengths: Int64Array, *, capacity: int) -> BoolArray:
        """See the class."""
        # No item is longer than the capacity; a longer length from the user may not even fit into
        # 64 bits.
        return np.isin(
            lengths,
            np.array([length for length in self.lengths if length <= capacity], dtype=np.int64),
        )
