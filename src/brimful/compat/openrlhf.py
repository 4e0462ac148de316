"""Planning functions of OpenRLHF, ``openrlhf.utils.seqlen_balancing``.

OpenRLHF counts micro-batches by first fit, takes the most of all ranks, and then divides tokens evenly among so many,
whether or not each part is within the budget. Here the count of a rank is one that ``get_seqlen_balanced_partitions`` divides
within the budget. A loop that wants a guarantee for the larger count of another rank too calls ``plan_step`` for both at once.
"""

from collections.abc import Sequence

import numpy as np

from brimful.compat.partitions import get_seqlen_balanced_partitions
from brimful.plan.step import plan_step

__all__ = ["get_minimum_num_micro_batch_size", "get_seqlen_balanced_partitions"]


def get_minimum_num_micro_batch_size(
    total_lengths: Sequence[int], max_tokens_per_gpu: int, ring_attn_size: int, ds_tensor_parallel_size: int
) -> int:
    """Return a number of micro-batches over which ``get_seqlen_balanced_partitions`` spreads samples within the budget.

    Args:
        total_lengths: tokens of each sample.
        max_tokens_per_gpu, ring_attn_size, ds_tensor_parallel_size: the budget is their product.

    Raises:
        OversizedSampleError: a sample exceeds the budget; OpenRLHF puts it into a micro-batch of its own.

    >>> get_minimum_num_micro_batch_size([5, 3, 7, 2, 6], 10, 1, 1)
    3
    >>> get_minimum_num_micro_batch_size([4, 5, 2, 5, 4], 10, 1, 1)  # 5+5 and 4+2+4 are not how it divides
    3
    """
    capacity = max_tokens_per_gpu * ring_attn_size * ds_tensor_parallel_size
    lengths = np.asarray(total_lengths)
    number = plan_step(lengths, capacity=capacity, dp_world_size=1).num_micro_batches
    # It ends: as many micro-batches as samples have one each.
    while (
        max(int(lengths[part].sum()) for part in get_seqlen_balanced_partitions(total_lengths, number, False))
        > capacity
    ):
        number += 1
    return number
