"""Search for a step: micro-batches are added until all samples have room."""

from __future__ import annotations

from abc import ABC, abstractmethod

from brimful.base.typing import Int64Array
from brimful.base.wording import counted, setting
from brimful.errors import InvalidLengthsError
from brimful.rl.step_plan import StepPlan


class StepSearch(ABC):
    """Search for the least number of micro-batches with room for all samples.

    Args:
        ranks: number of ranks.
        multiple_of: the number of micro-batches of a rank is a multiple of this number.
        is_step_barrier: ranks wait once per step.
    """

    def __init__(self, ranks: int, multiple_of: int, is_step_barrier: bool) -> None:
        self._ranks = ranks
        self._multiple_of = multiple_of
        self._is_step_barrier = is_step_barrier

    def plan(self, min_micro_batches: int, targets: Int64Array) -> StepPlan:
        """Return the plan with as few micro-batches as are found to have room.

        Args:
            min_micro_batches: minimum micro-batches of a rank.
            targets: ``int64[num_samples]``, targets of each sample.

        Raises:
            InvalidLengthsError: too few samples, or groups that leave a rank with too few.
        """
        multiple = self._multiple_of
        least = max(min_micro_batches, self.least_micro_batches())
        micro_batches = -(-least // multiple) * multiple
        self.refuse_too_few(micro_batches)
        while (bin_of := self.bins(micro_batches)) is None:
            micro_batches += multiple
            self.refuse_too_few(micro_batches)
        return self.plan_of(bin_of, micro_batches, targets)

    @abstractmethod
    def least_micro_batches(self) -> int:
        """Return a lower bound on the number of micro-batches of a rank."""

    @abstractmethod
    def bins(self, micro_batches: int) -> Int64Array | None:
        """Return the micro-batch ``rank · micro_batches + number`` of each item; None if no room is
        found.
        """

    @abstractmethod
    def refuse_too_few(self, micro_batches: int) -> None:
        """Raise if the micro-batches outnumber the items.

        Raises:
            InvalidLengthsError: names both numbers, and the settings that they follow from.
        """

    @abstractmethod
    def plan_of(self, bin_of: Int64Array, micro_batches: int, targets: Int64Array) -> StepPlan:
        """Return the plan with these micro-batches of items, and the targets of samples."""

    def refuse_fewer(self, count: int, noun: str, micro_batches: int) -> None:
        """Raise if there are fewer of something than micro-batches of all ranks."""
        num_needed = self._ranks * micro_batches
        if count < num_needed:
            raise too_few(
                f"{counted(count, noun)} cannot fill {counted(self._ranks, 'rank')} of "
                f"{micro_batches:,} micro-batches ({num_needed:,}), and none may be empty",
                self._multiple_of,
            )


def too_few(problem: str, multiple_of: int) -> InvalidLengthsError:
    """Return the error for samples that cannot fill a step, with the ways out."""
    way = f", or {setting('multiple_of', 1)}" if multiple_of > 1 else ""
    return InvalidLengthsError(
        f"{problem}: use fewer ranks, more samples, a larger {setting('capacity')}{way}"
    )
