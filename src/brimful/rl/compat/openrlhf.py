"""Planning functions of OpenRLHF, ``openrlhf.utils.seqlen_balancing``.

OpenRLHF counts micro-batches by first fit, takes the maximum over all ranks, and then divides
tokens evenly among that many micro-batches, whether or not each part is within the budget. Here the
count of a rank is one for which ``get_seqlen_balanced_partitions`` stays within the budget. To
guarantee the budget also for the larger count of another rank, call ``plan_step`` once for all
ranks.
"""

from collections.abc import Sequence

import numpy as np

from brimful.rl.compat.verl import get_seqlen_balanced_partitions
from brimful.rl.step_planner import plan_step

__all__ = ["get_minimum_num_micro_batch_size", "get_seqlen_balanced_partitions"]


def get_minimum_num_micro_batch_size(
    total_lengths: Sequence[int],
    max_tokens_per_gpu: int,
    ring_attn_size: int,
    ds_tensor_parallel_size: int,
) -> int:
    """Return a number of micro-batches for which ``get_seqlen_balanced_partitions`` stays within
    the budget.

    Args:
        total_lengths: tokens of each sample.
        max_tokens_per_gpu, ring_attn_size, ds_tensor_parallel_size: the budget is their product.

    Raises:
        OversizedSampleError: a sample exceeds the budget; OpenRLHF gives it its own micro-batch.

    >>> get_minimum_num_micro_batch_size([5, 3, 7, 2, 6], 10, 1, 1)
    3
    >>> get_minimum_num_micro_batch_size([4, 5, 2, 5, 4], 10, 1, 1)  # 5+5 and 4+2+4 are not how it divides
    3
    """
    capacity = max_tokens_per_gpu * ring_attn_size * ds_tensor_parallel_size
    lengths = np.asarray(total_lengths)
    num_micro_batches = plan_step(lengths, capacity=capacity, dp_world_size=1).num_micro_batches
    # The loop ends at the latest with as many micro-batches as samples, one sample each.
    while (
        max(
            int(lengths[partition].sum())
            for partition in get_seqlen_balanced_partitions(total_lengths, num_micro_batches, False)
        )
        > capacity
    ):
        num_micro_batches += 1
    return num_micro_batches
