"""Losses of preferences in PyTorch: DPO and related losses of each pair, and KTO of each answer."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F

from brimful.base.checks import is_number
from brimful.base.wording import setting
from brimful.collate.loss_torch import SegmentLosses
from brimful.errors import CollateError, SettingsError

__all__ = [
    "PAIR_LOSSES",
    "UNPAIRED_LOSSES",
    "KtoLosses",
    "PreferenceLosses",
    "kto_loss",
    "preference_loss",
]


class PreferenceLosses(NamedTuple):
    """Losses and rewards of the pairs of a micro-batch."""

    losses: torch.Tensor
    """``float32[num_pairs]``. Differentiable. Divide their sum only by the number of pairs of the
    step.
    """
    chosen_rewards: torch.Tensor
    """``float32[num_pairs]``: β·(log π - log π_ref) of the chosen answers. Detached."""
    rejected_rewards: torch.Tensor
    """The same for the rejected answers."""

    @property
    def accuracy(self) -> torch.Tensor:
        """Share of the pairs whose chosen answer has the higher reward: ``float32[]``."""
        return (self.chosen_rewards > self.rejected_rewards).float().mean()


class _Ratios(NamedTuple):
    """``log π - log π_ref`` of chosen and rejected, their difference, and the difference of their
    means over targets: ``float32[num_pairs]`` each.
    """

    chosen: torch.Tensor
    rejected: torch.Tensor
    delta: torch.Tensor
    delta_of_means: torch.Tensor


def _robust(ratios: _Ratios, beta: float, smoothing: float) -> torch.Tensor:
    """Return the unbiased loss for noisy labels (robust DPO, 2403.00409, eq. 6)."""
    right, flipped = F.logsigmoid(beta * ratios.delta), F.logsigmoid(-beta * ratios.delta)
    return (-right * (1 - smoothing) + flipped * smoothing) / (1 - 2 * smoothing)


def _nca_pair(ratios: _Ratios, beta: float, smoothing: float) -> torch.Tensor:
    chosen, rejected = beta * ratios.chosen, beta * ratios.rejected
    return -F.logsigmoid(chosen) - 0.5 * F.logsigmoid(-chosen) - 0.5 * F.logsigmoid(-rejected)


PAIR_LOSSES: dict[str, Callable[[_Ratios, float, float], torch.Tensor]] = {
    "sigmoid": lambda ratios, beta, _: -F.logsigmoid(beta * ratios.delta),
    "robust": _robust,
    "hinge": lambda ratios, beta, _: torch.relu(1 - beta * ratios.delta),
    "ipo": lambda ratios, beta, _: (ratios.delta_of_means - 1 / (2 * beta)) ** 2,
    "sigmoid_norm": lambda ratios, beta, _: -F.logsigmoid(beta * ratios.delta_of_means),
    "apo_zero": lambda ratios, beta, _: (
        1 - torch.sigmoid(beta * ratios.chosen) + torch.sigmoid(beta * ratios.rejected)
    ),
    "apo_down": lambda ratios, beta, _: (
        torch.sigmoid(beta * ratios.chosen) + 1 - torch.sigmoid(beta * ratios.delta)
    ),
    "nca_pair": _nca_pair,
    "bco_pair": lambda ratios, beta, _: (
        -F.logsigmoid(beta * ratios.chosen) - F.logsigmoid(-beta * ratios.rejected)
    ),
    "sppo_hard": lambda ratios, beta, _: (
        (ratios.chosen - 0.5 / beta) ** 2 + (ratios.rejected + 0.5 / beta) ** 2
    ),
}
"""Losses of TRL's ``loss_type`` that are sums over pairs, so packing does not change them; others
(``aot``, ``sft``) depend on which pairs share a micro-batch.
"""


def _check(loss_type: str, beta: Any, known: Collection[str]) -> None:
    if loss_type not in known:
        raise SettingsError(
            f"{setting('loss_type', loss_type)} is unknown: use one of {', '.join(known)}"
        )
    if not is_number(beta) or not 0 < beta < float("inf"):
        raise SettingsError(f"{setting('beta')} must be above 0 and is {beta!r}")


def preference_loss(
    losses: SegmentLosses,
    pairs: Any,
    reference_logps: Any,
    *,
    beta: float = 0.1,
    loss_type: str = "sigmoid",
    label_smoothing: float = 0.0,
) -> PreferenceLosses:
    """Return the loss of each pair of a packed micro-batch, equal to TRL's ``DPOTrainer`` on the
    same pairs.

    Divide the sum of ``losses`` by the number of pairs of the whole step (``global_sum``,
    ``scale_for_ddp``): micro-batches have different numbers of pairs, and with a mean of their
    means the weight of a pair would depend on the packing.

    Args:
        losses: losses of the segments, from ``per_sample_loss``; ``-nll_sum`` is the log
            probability of a completion.
        pairs: ``int64[num_pairs, 2]``, segments of chosen and rejected (``pair_segments``).
        reference_logps: ``float[num_pairs, 2]``, log probabilities of chosen and rejected under the
            reference model.
        beta: strength of the pull to the reference; τ of IPO.
        loss_type: a name in ``PAIR_LOSSES``; as in TRL 1.16.
        label_smoothing: share of the pairs with a wrong label, for ``robust``.

    Raises:
        SettingsError: no such loss, or smoothing for a loss without it.
        CollateError: reference log probabilities for another number of pairs, or not finite.

    Source: DPO (2305.18290), IPO (2310.12036), robust DPO (2403.00409), APO (2408.06266), NCA
    (2402.05369), SPPO (2405.00675).

    >>> segments = SegmentLosses(torch.tensor([2.0, 4.0]), torch.tensor([3, 3]), torch.tensor([0, 0]))
    >>> result = preference_loss(segments, [[0, 1]], [[-3.0, -3.0]], beta=1.0)
    >>> [round(loss, 4) for loss in result.losses.tolist()], result.chosen_rewards.tolist(), result.rejected_rewards.tolist()
    ([0.1269], [1.0], [-1.0])
    """
    _check(loss_type, beta, PAIR_LOSSES)
    if not 0 <= label_smoothing < 0.5 or (label_smoothing and loss_type != "robust"):
        raise SettingsError(
            f"{setting('label_smoothing')} is a share from 0 to below 0.5, for "
            f"{setting('loss_type', 'robust')}, and is {label_smoothing} for {loss_type}"
        )
    device = losses.nll_sum.device
    rows = torch.as_tensor(pairs, dtype=torch.int64, device=device).reshape(-1, 2)
    reference = torch.as_tensor(reference_logps, dtype=torch.float32, device=device)
    if reference.shape != rows.shape:
        raise CollateError(
            f"reference_logps must be two numbers for each of {len(rows)} pairs; their shape is "
            f"{tuple(reference.shape)}"
        )
    ratios = -losses.nll_sum[rows] - reference
    chosen, rejected = ratios.T
    means = (ratios / losses.num_targets[rows].clamp(min=1)).T
    facts = _Ratios(chosen, rejected, chosen - rejected, means[0] - means[1])
    result = PAIR_LOSSES[loss_type](facts, float(beta), float(label_smoothing))
    rewards = beta * ratios.detach()
    return PreferenceLosses(result, rewards[:, 0], rewards[:, 1])


UNPAIRED_LOSSES = ("kto", "apo_zero_unpaired")
"""Losses of TRL's ``KTOConfig.loss_type``; the second one needs no KL term."""


class KtoLosses(NamedTuple):
    """Losses and rewards of the rows of a micro-batch."""

    losses: torch.Tensor
    """``float32[num_rows]``, weighted. Differentiable. Divide their sum only by the number of rows
    of the step.
    """
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
    """Return the loss of each row of a packed micro-batch, equal to TRL's ``KTOTrainer`` on the
    same rows.

    Args:
        losses: losses of the segments, from ``per_sample_loss``; ``-nll_sum`` is the log
            probability of an answer.
        segments: ``int64[num_rows]``, segment of each row's answer.
        is_desirable: ``bool[num_rows]``, labels of the rows.
        reference_logps: ``float[num_rows]``, log probabilities of the answers under the reference
            model.
        kl: the mean of log π - log π_ref over the mismatches of the step; a value below 0 counts as
            0. Needed for ``kto``.
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
    _check(loss_type, beta, UNPAIRED_LOSSES)
    for name, weight in (
        ("desirable_weight", desirable_weight),
        ("undesirable_weight", undesirable_weight),
    ):
        if not is_number(weight) or not 0 <= weight < float("inf"):
            raise SettingsError(f"{setting(name)} must be 0 or more and is {weight!r}")
    if (kl is None) == (loss_type == "kto"):
        raise SettingsError(
            f"{setting('loss_type', 'kto')} needs kl, the KL term of the step, and other losses "
            f"take none; kl is {kl} for {loss_type}"
        )
    device = losses.nll_sum.device
    rows = torch.as_tensor(segments, dtype=torch.int64, device=device)
    labels = torch.as_tensor(is_desirable, dtype=torch.bool, device=device)
    reference = torch.as_tensor(reference_logps, dtype=torch.float32, device=device)
    if labels.shape != rows.shape or reference.shape != rows.shape:
        raise CollateError(
            f"is_desirable and reference_logps must be one value for each of {len(rows)} rows; "
            f"their shapes are {tuple(labels.shape)} and {tuple(reference.shape)}"
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
