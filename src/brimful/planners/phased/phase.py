"""Parts of a recipe: phases, which take counts and return packs and the remaining counts, and rules
that choose the lengths that open packs; and their settings, checked and as text.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from math import ceil, floor
from typing import Any, ClassVar

import numpy as np

from brimful.base.checks import check_share, is_whole_number, whole_number
from brimful.base.typing import BoolArray, Int64Array
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.packing import tokens_of
from brimful.planners.patterns import PatternRun, RemainingItems, patterns_of, remaining


@dataclass(frozen=True)
class Placed:
    """The result of a phase.

    Attributes:
        packs: the packs in the order in which they were made; no pack is over the capacity.
        left: the items outside the packs.
        note: reason why the phase did nothing, or less than it might; may be empty.
    """

    packs: list[PatternRun]
    left: Histogram
    note: str = ""


@dataclass(frozen=True)
class Settings:
    """Base of frozen dataclasses with the text form ``name(setting=value,…)``, without settings at
    their default.
    """

    name: ClassVar[str]
    """Name in the text that ``Recipe.parse`` reads."""

    def __post_init__(self) -> None:
        """Check the settings by their types: whole numbers of at least 1, or the ``minimum`` of the
        field, shares from 0 to 1, true or false. None is allowed if it is the default.
        """
        # The checked values replace the given ones: NumPy numbers would be written as np.int64(3).
        for field in fields(self):
            value, label = getattr(self, field.name), self._label(field.name)
            if value is None and field.default is None:
                continue
            if field.type in (int, int | None):
                value = whole_number(label, value, minimum=field.metadata.get("minimum", 1))
            elif field.type in (float, float | None):
                value = check_share(label, value)
            elif field.type is bool and not isinstance(value, bool):
                raise self.complaint(field.name, "true or false")
            object.__setattr__(self, field.name, value)

    def changed(self) -> dict[str, Any]:
        """Return the settings that are not at their default, in the order of the class."""
        values = ((field, getattr(self, field.name)) for field in fields(self))
        return {field.name: value for field, value in values if value != field.default}

    def __str__(self) -> str:
        text = ",".join(f"{name}={_as_text(value)}" for name, value in self.changed().items())
        return f"{self.name}({text})" if text else self.name

    def complaint(self, name: str, requirement: str) -> SettingsError:
        """Return the error for one setting.

        >>> from brimful.planners.phased import TopN
        >>> print(TopN(3).complaint("n", "at least 4"))
        phases top_n(n=…) must be at least 4 and is 3
        """
        return SettingsError(
            f"{self._label(name)} must be {requirement} and is {getattr(self, name)!r}"
        )

    def _label(self, name: str) -> str:
        return f"{setting('phases')} {self.name}({name}=…)"


def _as_text(value: Any) -> str:
    """Write one value in the form that the parser reads."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return repr(value) if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class Phase(Settings, ABC):
    """One step of a recipe. Pure: no I/O, no clock, no randomness. The cost depends on distinct
    lengths, not on items.
    """

    @abstractmethod
    def place(self, items: Histogram, *, capacity: int) -> Placed:
        """Make packs from some of the items.

        Args:
            items: the items that earlier phases left, none longer than the capacity.
            capacity: maximum tokens of a pack, at least 1.
        """


@dataclass(frozen=True)
class Finish(Phase):
    """Pack all remaining items by best fit decreasing; with ``min_fill``, first make full packs
    from a few seeds.

    ::

        capacity 10, items 6 3 2 2

        finish                  6 3 · 2 2
        finish(min_fill=1)      2 6 2 · 3       seeds 6 and 3 end at 9 and are put back; seed 2 takes 6, then 2

    Nothing is dropped, however little remains, and no pack is over the capacity, however poor the
    seeds are.

    Attributes:
        min_fill: None for only best fit decreasing. Otherwise some seeds come first, longest first:
            each is filled with the longest items that fit, of any length, and kept if the pack
            holds this share of the capacity.
        every, last: the lengths of these seeds: every n-th distinct length from the shortest, and
            of these the ``last`` longest (None for all).
        seeds_per_length: seeds of each of these lengths. Items of one length are equal, so no draw
            is needed; ``seed`` of the plan determines which samples they are.

    Source: step m of the phased recipe for multimodal data of LLaVA-OneVision-1.5, on counts.
    """

    name = "finish"

    min_fill: float | None = None
    every: int = 1
    last: int | None = None
    seeds_per_length: int = 10

    def place(self, items: Histogram, *, capacity: int) -> Placed:
        """Make packs of all items; see the class."""
        packs: list[PatternRun] = []
        if self.min_fill is not None:
            min_load = ceil(tokens_of(self.min_fill, capacity))
            fillers = RemainingItems(items)
            seed_lengths = items.lengths[:: self.every].tolist()
            for seed in reversed(seed_lengths if self.last is None else seed_lengths[-self.last :]):
                num_seeds = self.seeds_per_length
                # Equal packs at once, until an item of the content is used up; then new content for
                # the other seeds.
                while num_seeds and fillers.counts[seed]:
                    content = {seed: 1}
                    room = fillers.add_longest(capacity - seed, content, capacity)
                    if capacity - room < min_load:
                        break
                    num_packs = min(num_seeds, fillers.num_packs(content))
                    fillers.remove(content, num_packs)
                    num_seeds -= num_packs
                    packs.append((tuple(sorted(content.items(), reverse=True)), num_packs))
        # Seeds that were put back are among the other items.
        loose_items = remaining(items, packs)
        packs += patterns_of(best_fit_decreasing(loose_items, capacity=capacity)).items()
        return Placed(packs, remaining(items, packs), "" if items.num_items else "nothing was left")


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
