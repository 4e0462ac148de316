"""KTO and unpaired APO losses of packed answers in PyTorch, one number for each row."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from brimful.base.checks import is_number
from brimful.base.wording import setting
from brimful.collate.loss_torch import SegmentLosses
from brimful.errors import CollateError, SettingsError

__all__ = ["UNPAIRED_LOSSES", "KtoLosses", "kto_loss"]

UNPAIRED_LOSSES = ("kto", "apo_zero_unpaired")
"""Losses of TRL's ``KTOConfig.loss_type``; the second one needs no KL term."""


class KtoLosses(NamedTuple):
    """Losses and rewards of the rows of a micro-batch."""

    losses: torch.Tensor
    """``float32[num_rows]``, weighted. Differentiable. Divide their sum only by the number of rows of the step."""
    rewards: torch.Tensor
    """``float32[num_rows]``: β·(log π - log π_ref) of the answers. Detached."""


def kto_loss(
    losses: SegmentLosses,
    segments: Any,
    is_desirable: Any,
    reference_logps: Any,
    *,
    kl: Any = None,
    beta: float = 0.1,
    loss_type: str = "kto",
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> KtoLosses:
    """Return the loss of each row of a packed micro-batch, equal to TRL's ``KTOTrainer`` on the same rows.

    Args:
        losses: losses of the segments, from ``per_sample_loss``; ``-nll_sum`` is the log probability of an answer.
        segments: ``int64[num_rows]``, segment of each row's answer.
        is_desirable: ``bool[num_rows]``, labels of the rows.
        reference_logps: ``float[num_rows]``, log probabilities of the answers under the reference model.
        kl: the mean of log π - log π_ref over the mismatches of the step; a value below 0 counts as 0. Needed for
            ``kto``.
        beta: strength of the pull to the reference.
        loss_type: a name in ``UNPAIRED_LOSSES``; as in TRL 1.16.
        desirable_weight, undesirable_weight: factors of the losses by label.

    Raises:
        SettingsError: no such loss, a number out of range, or a missing or unexpected KL term.
        CollateError: labels or reference log probabilities for another number of rows.

    Source: KTO (2402.01306, eq. 7), APO (2408.06266).

    >>> logps = SegmentLosses(torch.tensor([2.0, 4.0]), torch.tensor([3, 3]), torch.tensor([0, 0]))
    >>> result = kto_loss(logps, [0, 1], [True, False], [-3.0, -3.0], kl=0.0, beta=1.0, undesirable_weight=2.0)
    >>> [round(loss, 4) for loss in result.losses.tolist()], result.rewards.tolist()
    ([0.2689, 0.5379], [1.0, -1.0])
    """
    if loss_type not in UNPAIRED_LOSSES:
        raise SettingsError(f"{setting('loss_type', loss_type)} is unknown: use one of {', '.join(UNPAIRED_LOSSES)}")
    if not is_number(beta) or not beta > 0:
        raise SettingsError(f"{setting('beta')} must be above 0 and is {beta!r}")
    for name, weight in (("desirable_weight", desirable_weight), ("undesirable_weight", undesirable_weight)):
        if not is_number(weight) or not weight >= 0:
            raise SettingsError(f"{setting(name)} must be 0 or more and is {weight!r}")
    if (kl is None) == (loss_type == "kto"):
        reason = "needs the KL term of the step" if kl is None else "has no KL term"
        raise SettingsError(f"{setting('loss_type', loss_type)} {reason}: {'give' if kl is None else 'leave out'} kl")
    device = losses.nll_sum.device
    rows = torch.as_tensor(segments, dtype=torch.int64, device=device)
    labels = torch.as_tensor(is_desirable, dtype=torch.bool, device=device)
    reference = torch.as_tensor(reference_logps, dtype=torch.float32, device=device)
    if labels.shape != rows.shape or reference.shape != rows.shape:
        raise CollateError(
            f"is_desirable and reference_logps must be one value for each of {len(rows)} rows; their shapes are "
            f"{tuple(labels.shape)} and {tuple(reference.shape)}"
        )
    ratios = -losses.nll_sum[rows] - reference
    point = torch.zeros((), device=device)
    if kl is not None:
        point = torch.as_tensor(kl, dtype=torch.float32, device=device).detach().clamp(min=0)
    signs = torch.where(labels, 1.0, -1.0)
    weights = torch.where(labels, float(desirable_weight), float(undesirable_weight))
    # σ(-x) is 1 - σ(x): an undesirable answer of apo_zero_unpaired loses σ(β·ratio).
    result = weights * torch.sigmoid(-signs * beta * (ratios - point))
    return KtoLosses(result, beta * ratios.detach())
