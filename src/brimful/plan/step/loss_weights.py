"""Weights of losses in reinforcement learning: means by token or by sample, or sums over a constant."""

from __future__ import annotations

from enum import Enum

import numpy as np

from brimful.checks import choice_of, is_number
from brimful.errors import SettingsError
from brimful.typing import Float64Array, Int64Array


class LossMean(str, Enum):
    """Definition of the mean loss of a step, under the trainers' names.

    With n targets in a sample, and N targets and S samples with a target in the whole step, the weight of a target is:
    """

    TOKEN_MEAN = "token-mean"
    """1/N: every target counts equally. (DAPO, 2025)"""
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"
    """1/(S·n): every sample counts equally, by the mean of its targets. (GRPO, 2024)"""
    SEQ_MEAN_TOKEN_SUM = "seq-mean-token-sum"
    """1/S: every sample counts by the sum of its targets."""
    CONSTANT = "constant"
    """1/constant, such as S times the maximum answer length. (Dr. GRPO, 2025)"""


def loss_weights(
    loss_tokens: Int64Array, mean: LossMean | str, *, constant: float | None = None, scale: float = 1.0
) -> Float64Array:
    """Return the weight of each target of a sample, so that Σ weight · loss over the step is the chosen mean.

    Micro-batches and ranks add their sums: counts need not be gathered, and no micro-batch is divided by its own count.

    Pure: no I/O.

    Args:
        loss_tokens: ``int64[num_samples]``: targets of each sample of the step, on all ranks.
        mean: ``token-mean``, ``seq-mean-token-mean``, ``seq-mean-token-sum`` or ``constant``.
        constant: divisor of ``constant``; above 0.
        scale: a factor: the number of ranks if the trainer averages gradients over them (DDP, FSDP) instead of adding
            them.

    Returns:
        ``float64[num_samples]``; 0 for a sample without a target.

    Raises:
        SettingsError: no such mean, ``constant`` without its divisor, or a divisor with another mean.

    >>> loss_weights(np.array([4, 1, 0]), "seq-mean-token-mean").tolist()
    [0.125, 0.5, 0.0]
    """
    mean = choice_of(LossMean, mean, argument="mean")
    if (constant is not None) != (mean is LossMean.CONSTANT):
        raise SettingsError('constant belongs to the mean "constant", and to no other: give both or neither')
    if constant is not None and not (is_number(constant) and 0 < constant < float("inf")):
        raise SettingsError(f"constant must be a number above 0 and is {constant!r}")
    has_target = loss_tokens > 0
    if mean is LossMean.TOKEN_MEAN:
        divisors = np.full(len(loss_tokens), max(int(loss_tokens.sum()), 1), dtype=np.float64)
    elif mean is LossMean.CONSTANT:
        divisors = np.full(len(loss_tokens), constant, dtype=np.float64)
    else:
        divisors = np.full(len(loss_tokens), max(int(has_target.sum()), 1), dtype=np.float64)
        if mean is LossMean.SEQ_MEAN_TOKEN_MEAN:
            divisors = divisors * np.maximum(loss_tokens, 1)
    return np.where(has_target, scale / divisors, 0.0)
