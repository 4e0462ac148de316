"""Schedulers of Megatron-Core that choose the context parallelism of each sample:
``BalancedCPScheduler`` of 0.16, and ``DefaultDynamicCPScheduler`` since June 2026.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np

from brimful.errors import InvalidLengthsError
from brimful.plan import CostModel
from brimful.rl.context_parallel import plan_context_parallel
from brimful.rl.step_items import StepCost

__all__ = [
    "COST_OF_MEGATRON",
    "balanced_cp_scheduler",
    "dynamic_cp_scheduler",
    "groups_and_subsamples",
]

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


def dynamic_cp_scheduler() -> type[Any]:
    """Return a subclass of Megatron-Core's ``DefaultDynamicCPScheduler`` that plans with brimful.

    Replace the original class before the data iterator is wrapped; verl takes it from the module,
    Megatron-Core from the table::

        from megatron.core.datasets import data_schedule
        planned = dynamic_cp_scheduler()
        data_schedule.DefaultDynamicCPScheduler = planned
        data_schedule.scheduler_map["default_dynamic_cp"] = planned

    Groups of ranks are adjacent and aligned to their size, and no rank is empty. With virtual
    pipeline stages, Megatron-Core's own function rounds the number of micro-batches. A step for
    which there is no plan, such as fewer samples than 12 ranks need, is left to Megatron-Core and
    logged.

    Raises:
        ImportError: megatron-core is not installed, or has no such scheduler.
    """
    from megatron.core.datasets import data_schedule

    class PlannedDynamicCPScheduler(data_schedule.DefaultDynamicCPScheduler):  # type: ignore[misc]
        """Scheduler that takes its groups from ``plan_context_parallel``."""

        def get_groups_and_subsamples(self, sample_id_seqlens: Any) -> Any:
            smallest = self.min_cp_size
            try:
                # Ranks that always share a sample are planned as one, with the room of all.
                _, groups = groups_and_subsamples(
                    sample_id_seqlens,
                    self.max_seq_len_per_rank * smallest,
                    self.total_hdp_gpus // smallest,
                )
            except InvalidLengthsError as error:
                logging.getLogger("brimful").warning("Megatron-Core plans this step: %s", error)
                return super().get_groups_and_subsamples(sample_id_seqlens)
            by_rank = [[ids for ids in group for _ in range(smallest)] for group in groups]
            multiple = self.microbatch_group_size_per_vp_stage or 1
            if multiple == 1:
                return by_rank
            return data_schedule.align_sample_id_groups(by_rank, multiple)

    return PlannedDynamicCPScheduler
