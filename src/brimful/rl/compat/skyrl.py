"""Planning functions of SkyRL, ``skyrl.train.dataset.bin_packing``."""

from __future__ import annotations

from typing import Any

from brimful.rl.compat.nemo_rl import SequencePacker

__all__ = ["make_seq_packer"]


def make_seq_packer(
    algorithm: Any,
    bin_capacity: int,
    min_bin_count: int | None = None,
    bin_count_multiple: int | None = None,
) -> SequencePacker:
    """Make a packer, an object with ``pack(sequence_lengths)``.

    The algorithm is accepted but has no effect. A sequence above the capacity is refused, as by
    SkyRL's ``first_fit_decreasing``; SkyRL's ``balanced`` puts it alone into a bin over the budget.

    >>> make_seq_packer("balanced", 7, bin_count_multiple=2).pack([3, 3, 5, 6, 1, 1])
    [[3], [2, 4], [1], [0, 5]]
    """
    return SequencePacker(
        bin_capacity, min_bin_count=min_bin_count, bin_count_multiple=bin_count_multiple
    )
