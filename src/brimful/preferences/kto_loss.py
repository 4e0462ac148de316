"""Loss of KTO on packs: the answers with their labels, and the KL completions of the same rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import torch

from brimful.base.checks import is_number
from brimful.base.typing import BoolArray, Int64Array, LossMask
from brimful.base.wording import setting
from brimful.collate.loss_torch import SegmentLosses
from brimful.errors import CollateError, SettingsError
from brimful.preferences.dpo import pair_segments
from brimful.store.shards import Pack


@dataclass(frozen=True)
class AnswersAndKlCompletions:
    """Two packs made from one pack; segment ``i`` of both belongs to the same row.

    Attributes:
        answers, kl_completions: the two packs, each with its targets.
        is_desirable: ``bool[num_rows]``, label of each row.
        is_row: ``bool[num_rows]``, false for a row without targets, which only completes a step.
    """

    answers: Pack
    kl_completions: Pack
    is_desirable: BoolArray
    is_row: BoolArray


def split_kl_completions(pack: Pack) -> AnswersAndKlCompletions:
    """Split a pack of KTO into answers and KL completions.

    Of samples ``2n`` and ``2n + 1`` one has targets: the answer of row ``n``, desirable if its number is even. The
    other has a completion of another row, for the KL term; it begins at the same token as the answer::

        sample    4          5             row 2 is desirable
        tokens    Q : 4      Q : 5 6
        targets       4                    of the KL completion: 5 6

    Raises:
        CollateError: a sample without its mate, a pair with targets on both, or a sample without its beginning.

    >>> from brimful.testing.toys import toy_pack
    >>> pack = toy_pack([4, 3])
    >>> pack.loss_mask[4:] = False
    >>> split_kl_completions(pack).is_desirable.tolist(), split_kl_completions(pack).kl_completions.loss_mask.tolist()
    ([True], [False, True, True])
    """
    answers, others, targets = _roles(pack)
    marked = _marked(pack, answers, others)
    return AnswersAndKlCompletions(
        _taken(pack, pack.loss_mask, answers),
        _taken(pack, marked, others),
        pack.sample_ids[answers] % 2 == 0,
        targets[answers] > 0,
    )


def with_kl_targets(pack: Pack) -> Pack:
    """Return a pack of KTO with the targets of its KL completions set."""
    answers, others, _ = _roles(pack)
    return replace(pack, loss_mask=_marked(pack, answers, others))


def _roles(pack: Pack) -> tuple[Int64Array, Int64Array, Int64Array]:
    """Return the segments of the answers and of the KL completions, and the number of targets of all segments."""
    pairs = pair_segments(pack.sample_ids)
    targets = np.add.reduceat(pack.loss_mask.astype(np.int64), pack.cu_seqlens[:-1])
    both = (targets[pairs] > 0).all(axis=1)
    if both.any():
        raise CollateError(
            f"sample {int(pack.sample_ids[pairs[both][0, 0]])} and its mate both have targets, and a mismatch of KTO has none: "
            f"pack rows of a format of KTO, or use PreferenceCollator"
        )
    cut = np.flatnonzero(pack.starts)
    if len(cut):
        raise CollateError(
            f"sample {int(pack.sample_ids[cut[0]])} lost its beginning, so the answer of its mismatch begins at an "
            f"unknown token: pack rows of KTO with overflow drop or truncate"
        )
    rows = np.arange(len(pairs))
    slots = (targets[pairs[:, 1]] > 0).astype(np.int64)
    return pairs[rows, slots], pairs[rows, 1 - slots], targets


def _marked(pack: Pack, answers: Int64Array, others: Int64Array) -> LossMask:
    """Return the targets of a pack, including the targets of its KL completions."""
    mask = pack.loss_mask.copy()
    for answer, other in zip(answers.tolist(), others.tolist(), strict=True):
        start, stop = pack.cu_seqlens[answer : answer + 2].tolist()
        own = pack.loss_mask[start:stop]
        if own.any():
            first, last = pack.cu_seqlens[other : other + 2].tolist()
            # No token predicts the first token of a segment, so it is not a target.
            mask[min(first + max(int(own.argmax()), 1), last) : last] = True
    return mask


def _taken(pack: Pack, mask: LossMask, segments: Int64Array) -> Pack:
    return replace(pack, loss_mask=mask).take(segments.tolist())


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
