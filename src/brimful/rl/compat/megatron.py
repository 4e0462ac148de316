"""Scheduler of Megatron-Core for hybrid context parallelism,
``megatron.core.pipeline_parallel.hybrid_cp_schedule``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from brimful.plan import CostModel
from brimful.rl.context_parallel import plan_context_parallel
from brimful.rl.step_items import StepCost

__all__ = ["COST_OF_MEGATRON", "balanced_cp_scheduler", "groups_and_subsamples"]

COST_OF_MEGATRON = CostModel(linear=0, quadratic=1, tile=1)
"""Workload that Megatron-Core assumes: l². Pass the cost of your model instead."""


def groups_and_subsamples(
    sample_id_seqlens: Sequence[tuple[int, int]],
    max_seq_len_per_rank: int,
    total_hdp_gpus: int,
    cost: StepCost = COST_OF_MEGATRON,
) -> tuple[list[list[list[int]]], list[list[list[int]]]]:
    """Return lengths and ids by micro-batch and rank, like
    ``BalancedCPScheduler.get_groups_and_subsamples``.

    Megatron-Core limits one sample's share on a rank; here the limit holds for all tokens of a rank
    in a micro-batch.

    Args:
        sample_id_seqlens: id and length of each sample.
        max_seq_len_per_rank: maximum tokens of a rank in a micro-batch.
        total_hdp_gpus: ranks of data and context parallelism together.
        cost: model of the cost of a sample; each of n ranks has 1 / n of it.

    Raises:
        The errors of ``plan_context_parallel``.

    >>> groups_and_subsamples([(7, 16), (8, 16), (9, 8), (4, 8)], 8, 4)
    ([[[16], [16], [16], [16]], [[8], [8], [8], [8]]], [[[7], [7], [8], [8]], [[9], [9], [4], [4]]])
    """
    ids = [sample_id for sample_id, _ in sample_id_seqlens]
    lengths = [length for _, length in sample_id_seqlens]
    plan = plan_context_parallel(
        np.array(lengths),
        max_tokens_per_rank=max_seq_len_per_rank,
        world_size=total_hdp_gpus,
        cost=cost,
    )
    groups = plan.sample_id_groups
    return (
        [[[lengths[sample] for sample in samples] for samples in by_rank] for by_rank in groups],
        [[[ids[sample] for sample in samples] for samples in by_rank] for by_rank in groups],
    )


def balanced_cp_scheduler() -> type[Any]:
    """Return a subclass of Megatron-Core's ``BalancedCPScheduler`` that plans with brimful.

    Replace the original class before the data iterator is wrapped::

        from megatron.core.datasets import data_schedule
        data_schedule.BalancedCPScheduler = balanced_cp_scheduler()

    Raises:
        ImportError: megatron-core is not installed, or has no such scheduler.
    """
    from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler

    class PlannedCPScheduler(BalancedCPScheduler):  # type: ignore[misc]
        """Scheduler that takes its groups from ``plan_context_parallel``."""

        def get_groups_and_subsamples(self, sample_id_seqlens: Any, config: Any) -> Any:
            return groups_and_subsamples(
                sample_id_seqlens, self.max_seq_len_per_rank, self.total_hdp_gpus
            )

    return PlannedCPScheduler
