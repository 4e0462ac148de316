"""Partitions of equal sums: the function that verl, slime and OpenRLHF share."""

from collections.abc import Sequence

import numpy as np

from brimful.errors import SettingsError
from brimful.rl.step_planner import plan_step


def get_seqlen_balanced_partitions(seqlen_list: Sequence[int], k_partitions: int, equal_size: bool) -> list[list[int]]:
    """Divide items into partitions of nearly equal sums, by least load instead of differencing.

    Args:
        seqlen_list: lengths, or workloads of any size.
        k_partitions: number of partitions, none of them empty.
        equal_size: give each the same number of items; ``k_partitions`` has to divide the number of items.

    Returns:
        Ascending positions of each partition.

    Raises:
        InvalidLengthsError: fewer items than partitions.
        SettingsError: ``equal_size``, and ``k_partitions`` does not divide the number of items.

    >>> get_seqlen_balanced_partitions([5, 3, 7, 2, 6, 1], 2, equal_size=True)
    [[1, 2, 3], [0, 4, 5]]
    """
    num_items = len(seqlen_list)
    if equal_size and num_items % k_partitions:
        raise SettingsError(f"equal_size needs a multiple of {k_partitions:,} items, not {num_items:,}")
    # Every item takes one place: the capacity counts items, and the values are the cost.
    step = plan_step(
        np.ones(num_items, dtype=np.int32),
        capacity=max(1, num_items // k_partitions if equal_size else num_items),
        dp_world_size=k_partitions,
        cost=np.asarray(seqlen_list, dtype=np.float64),
        barrier="step",
    )
    return [step.micro_batches(partition)[0].tolist() for partition in range(k_partitions)]
