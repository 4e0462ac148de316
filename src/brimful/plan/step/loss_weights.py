"""Weights of the losses that reinforcement learning sums: by token, by sample, or over a constant."""

from __future__ import annotations

from enum import Enum

import numpy as np

from brimful.checks import choice_of, is_number
from brimful.errors import SettingsError
from brimful.typing import Float64Array, Int64Array


class LossMean(str, Enum):
    """The mean that the loss of a step is, under the names that trainers give it.

    With n targets in a sample, N targets and S samples with a target in the whole step, a target weighs:
    """

    TOKEN_MEAN = "token-mean"
    """1/N: every target alike. (DAPO, 2025)"""
    SEQ_MEAN_TOKEN_MEAN = "seq-mean-token-mean"
    """1/(S·n): every sample alike, by the mean of its targets. (GRPO, 2024)"""
    SEQ_MEAN_TOKEN_SUM = "seq-mean-token-sum"
    """1/S: every sample by the sum of its targets."""
    CONSTANT = "constant"
    """1/constant, such as S times the longest answer that was allowed. (Dr. GRPO, 2025)"""


def loss_weights(
    loss_tokens: Int64Array, mean: LossMean | str, *, constant: float | None = None, scale: float = 1.0
) -> Float64Array:
    """Return the weight of each target of a sample, so that Σ weight · loss over the step is that mean.

    Micro-batches and ranks add their sums: no count has to be gathered, and no micro-batch is divided by its own.

    Pure: no I/O.

    Args:
        loss_tokens: ``int64[num_samples]``: targets of each sample of the step, on all ranks.
        mean: ``token-mean``, ``seq-mean-token-mean``, ``seq-mean-token-sum`` or ``constant``.
        constant: divisor of ``constant``; above 0.
        scale: a factor: the number of ranks where the trainer averages gradients over them (DDP, FSDP) instead of
            adding them up.

    Returns:
        ``float64[num_samples]``; 0 for a sample without a target.

    Raises:
        SettingsError: no such mean, or a constant where there is none, and none where there is one.

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
