"""Samples by micro-batch: their order, and the sums of each micro-batch."""

from __future__ import annotations

import numpy as np

from brimful.compiling import compiled
from brimful.plan.step.fill import WORTH_COMPILING
from brimful.ragged import offsets_of
from brimful.typing import Float64Array, Int64Array, Offsets


def sort_by_micro_batch(
    bin_of: Int64Array, tokens: Int64Array, costs: Float64Array, *, num_bins: int
) -> tuple[Int64Array, Offsets, Int64Array, Float64Array]:
    """Sort samples by their micro-batch, and sum the tokens and costs of each micro-batch.

    Pure: no I/O. Costs are added in order of arrival, so that the compiled and the NumPy sums have the same bits.

    Args:
        bin_of: ``int64[num_samples]``: the micro-batch of each sample.
        tokens, costs: ``int64[num_samples]`` and ``float64[num_samples]``.
        num_bins: number of micro-batches.

    Returns:
        ``int64[num_samples]``, samples by micro-batch, ascending within each; ``int64[num_bins + 1]``, their offsets;
        ``int64[num_bins]`` and ``float64[num_bins]``, tokens and costs of each micro-batch.

    Cost: O(n + micro-batches), a counting sort.

    >>> order, offsets, tokens, costs = sort_by_micro_batch(
    ...     np.array([1, 0, 1]), np.array([3, 4, 5]), np.array([1.0, 2.0, 3.0]), num_bins=2
    ... )
    >>> order.tolist(), offsets.tolist(), tokens.tolist(), costs.tolist()
    ([1, 0, 2], [0, 1, 3], [4, 8], [2.0, 4.0])
    """
    kernel = compiled(_count_and_sort, len(bin_of), worth=WORTH_COMPILING)
    if kernel is not None:
        order = np.empty(len(bin_of), dtype=np.int64)
        offsets = np.zeros(num_bins + 1, dtype=np.int64)
        token_sums, cost_sums = np.zeros(num_bins, dtype=np.int64), np.zeros(num_bins, dtype=np.float64)
        kernel(bin_of, np.ascontiguousarray(tokens), costs, order, offsets, token_sums, cost_sums)
        return order, offsets, token_sums, cost_sums
    cost_sums = np.bincount(bin_of, weights=costs, minlength=num_bins).astype(np.float64)
    token_sums = np.bincount(bin_of, weights=tokens, minlength=num_bins).astype(np.int64)  # exact below 2**53
    # NumPy sorts 16-bit keys by radix.
    keys = bin_of.astype(np.uint16) if num_bins < 1 << 16 else bin_of
    return np.argsort(keys, kind="stable"), offsets_of(np.bincount(bin_of, minlength=num_bins)), token_sums, cost_sums


def _count_and_sort(
    bin_of: Int64Array,
    tokens: Int64Array,
    costs: Float64Array,
    order: Int64Array,
    offsets: Offsets,
    token_sums: Int64Array,
    cost_sums: Float64Array,
) -> None:
    """Write order, offsets and sums; to be compiled."""
    num_bins = len(token_sums)
    for sample in range(len(bin_of)):
        number = bin_of[sample]
        offsets[number + 1] += 1
        token_sums[number] += tokens[sample]
        cost_sums[number] += costs[sample]
    for number in range(num_bins):
        offsets[number + 1] += offsets[number]
    # Each sample goes to the begin of its micro-batch, which then advances: in the end, begins are the ends.
    for sample in range(len(bin_of)):
        number = bin_of[sample]
        order[offsets[number]] = sample
        offsets[number] += 1
    for number in range(num_bins, 0, -1):
        offsets[number] = offsets[number - 1]
    offsets[0] = 0
