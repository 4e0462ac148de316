"""Planning functions of OpenRLHF, ``openrlhf.utils.seqlen_balancing``.

OpenRLHF counts micro-batches by first fit, takes the most of all ranks, and then divides tokens evenly among so many,
whether or not each part is within the budget. Counted by this module, they fit wherever ``plan_packs`` finds room; a
loop that wants a guarantee calls ``plan_step`` for both at once.
"""

from collections.abc import Sequence

from brimful.compat.partitions import get_seqlen_balanced_partitions
from brimful.plan.step import plan_step

__all__ = ["get_minimum_num_micro_batch_size", "get_seqlen_balanced_partitions"]


def get_minimum_num_micro_batch_size(
    total_lengths: Sequence[int], max_tokens_per_gpu: int, ring_attn_size: int, ds_tensor_parallel_size: int
) -> int:
    """Return a number of micro-batches over which the samples of a rank are spread within the budget.

    Args:
        total_lengths: tokens of each sample.
        max_tokens_per_gpu, ring_attn_size, ds_tensor_parallel_size: the budget is their product.

    Raises:
        OversizedSampleError: a sample exceeds the budget; OpenRLHF puts it into a micro-batch of its own.

    >>> get_minimum_num_micro_batch_size([5, 3, 7, 2, 6], 10, 1, 1)
    3
    """
    capacity = max_tokens_per_gpu * ring_attn_size * ds_tensor_parallel_size
    return plan_step(total_lengths, capacity=capacity, dp_world_size=1).num_micro_batches
