"""Planning functions of NeMo RL, ``nemo_rl.data.packing``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from brimful.base.checks import whole_number
from brimful.rl.step_items import StepCost
from brimful.rl.step_planner import plan_step

__all__ = ["SequencePacker", "get_packer"]


class SequencePacker:
    """Packer of sequences into bins; the number of bins is a multiple of the ranks.

    Bins are in the order in which NeMo RL deals them: bin ``b`` goes to rank
    ``b % bin_count_multiple``, and bins that are computed at the same time have about the same
    cost.

    Raises:
        SettingsError: ``min_bin_count`` or ``bin_count_multiple`` below 1.

    >>> SequencePacker(7, bin_count_multiple=2).pack([3, 3, 5, 6, 1, 1])
    [[3], [2, 4], [1], [0, 5]]
    """

    def __init__(
        self,
        bin_capacity: int,
        collect_metrics: bool = False,
        min_bin_count: int | None = None,
        bin_count_multiple: int | None = None,
        cost: StepCost | None = None,
    ) -> None:
        self.bin_capacity = bin_capacity
        self.collect_metrics = collect_metrics
        least = 1 if min_bin_count is None else min_bin_count
        multiple = 1 if bin_count_multiple is None else bin_count_multiple
        self.min_bin_count = whole_number("min_bin_count", least, minimum=1)
        self.bin_count_multiple = whole_number("bin_count_multiple", multiple, minimum=1)
        self.cost = cost
        self.metrics: dict[str, float] = {}

    def pack(self, sequence_lengths: Sequence[int]) -> list[list[int]]:
        """Return the positions of each bin; none is empty or above the capacity.

        Raises:
            OversizedSampleError: a sequence exceeds the capacity.
            InvalidLengthsError: fewer sequences than bins.
        """
        ranks = self.bin_count_multiple
        step = plan_step(
            sequence_lengths,
            capacity=self.bin_capacity,
            dp_world_size=ranks,
            cost=self.cost,
            min_micro_batches=-(-self.min_bin_count // ranks),
        )
        if self.collect_metrics:
            self.metrics = {"num_bins": float(step.tokens.size), "bin_utilization": step.fill_ratio}
        by_rank = [step.micro_batches(rank) for rank in range(ranks)]
        return [
            by_rank[rank][micro_batch].tolist()
            for micro_batch in range(step.num_micro_batches)
            for rank in range(ranks)
        ]

    def __repr__(self) -> str:
        return (
            f"SequencePacker(capacity {self.bin_capacity:,}, a multiple of "
            f"{self.bin_count_multiple} bins)"
        )


def get_packer(
    algorithm: Any,
    bin_capacity: int,
    collect_metrics: bool = False,
    seed: int | None = None,
    min_bin_count: int | None = None,
    bin_count_multiple: int | None = None,
) -> SequencePacker:
    """Make a packer. Algorithm and seed are accepted but have no effect: the plan is spread over
    the ranks.

    >>> get_packer("modified_first_fit_decreasing", 8)
    SequencePacker(capacity 8, a multiple of 1 bins)
    """
    return SequencePacker(bin_capacity, collect_metrics, min_bin_count, bin_count_multiple)
