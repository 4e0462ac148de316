"""The loss of a packed batch in PyTorch: summed, weighted, by segment; and the one number that divides a step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from brimful.errors import CollateError, SettingsError
from brimful.typing import IGNORE_INDEX

__all__ = ["SegmentLosses", "aggregate", "global_sum", "packed_loss_sum", "per_sample_loss", "scale_for_ddp"]

_CHUNK_LOGITS = 1 << 27
"""Logits that are in float32 at a time: 512 MiB, about 880 tokens at a vocabulary of 152k."""


class SegmentLosses(NamedTuple):
    """Losses of the real segments of a batch; sums, so that any division is open."""

    nll_sum: torch.Tensor
    """``float32[num_segments]``: negative log likelihood of the targets, summed. Differentiable."""
    num_targets: torch.Tensor
    """``int64[num_segments]``."""
    num_correct: torch.Tensor
    """``int64[num_segments]``: targets that the model finds most likely."""


def packed_loss_sum(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    cu_seqlens: Any = None,
    loss_weights: torch.Tensor | None = None,
    labels_shifted: bool = False,
) -> torch.Tensor:
    """Σ w·nll over the targets of a batch, to be divided by the step's Σ w and by nothing else.

    Takes no float32 copy of the logits: beside their gradient, memory for ``_CHUNK_LOGITS`` numbers.

    Args:
        logits: ``[T, V]`` or ``[1, T, V]``, of any floating type.
        labels: ``int64[T]`` or ``[1, T]``, not shifted: token ``i + 1`` is what place ``i`` predicts. Shifted if
            ``labels_shifted``.
        cu_seqlens: boundaries, where the first label of a segment may not be ignored yet.
        loss_weights: ``float32[T]`` beside the labels; 1 at every target if None.

    Returns:
        A float32 scalar; 0 for a batch without targets, and differentiable even so.
    """
    rows, targets = _aligned(logits, labels, cu_seqlens, labels_shifted)
    nll: torch.Tensor = _TokenLoss.apply(rows, targets)
    if loss_weights is None:
        return nll.sum()
    weights = loss_weights.reshape(-1).to(nll)
    if len(weights) != len(nll):
        raise CollateError(f"{len(weights):,} loss weights were given for {len(nll):,} tokens")
    return (nll * (weights if labels_shifted else _shift(weights, 0.0))).sum()


def per_sample_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    cu_seqlens: Any,
    num_segments: int | None = None,
    *,
    labels_shifted: bool = False,
) -> SegmentLosses:
    """Loss and hits of every sample of a packed batch, as if each had been run alone.

    Labels are shifted inside of segments and never across: the last token of one predicts nothing.

    Args:
        logits, labels, labels_shifted: as in ``packed_loss_sum``.
        cu_seqlens: ``int32[S + 1]``, tensor or array.
        num_segments: real segments, the first of the ``S``; all if None.

    Returns:
        Of each real segment: a preference loss takes ``-nll_sum`` as log probability of the response.

    >>> logits = torch.tensor([[0.0, 9.0], [9.0, 0.0], [0.0, 9.0], [0.0, 9.0]])
    >>> losses = per_sample_loss(logits, torch.tensor([-100, 1, -100, 0]), [0, 2, 4])
    >>> [round(loss, 3) for loss in losses.nll_sum.tolist()], losses.num_targets.tolist(), losses.num_correct.tolist()
    ([0.0, 9.0], [1, 1], [1, 0])
    """
    rows, targets = _aligned(logits, labels, cu_seqlens, labels_shifted)
    nll: torch.Tensor = _TokenLoss.apply(rows, targets)
    ends = torch.as_tensor(cu_seqlens, device=rows.device)[1:].to(torch.int64)
    count = len(ends) if num_segments is None else num_segments
    # Which segment each token is of, on the device and without asking it. One place more for the padding.
    segment = torch.bucketize(torch.arange(len(targets), device=rows.device), ends, right=True).clamp_(max=len(ends))
    is_target = targets != IGNORE_INDEX
    exact = torch.float32 if rows.device.type == "mps" else torch.float64
    sums = torch.zeros(len(ends) + 1, dtype=exact, device=rows.device).index_add(0, segment, nll.to(exact))
    with torch.no_grad():
        correct = torch.cat([part.argmax(dim=-1) for part in _chunks(rows)]) == targets
        blank = torch.zeros(len(ends) + 1, dtype=torch.int64, device=rows.device)
        num_targets = blank.index_add(0, segment, is_target.to(torch.int64))
        num_correct = blank.index_add(0, segment, (correct & is_target).to(torch.int64))
    return SegmentLosses(sums[:count].float(), num_targets[:count], num_correct[:count])


def aggregate(
    losses: SegmentLosses | Sequence[SegmentLosses],
    *,
    sources: Any = None,
    source_names: Sequence[str] = (),
    group: Any = None,
    over_ranks: bool = False,
) -> dict[str, float]:
    """Means over targets, for people to read: ``loss`` and ``token_acc``, and of each source if sources are given.

    Args:
        losses: of one batch or of several.
        sources: ``int[segments]``, source of each segment, over all batches in order.
        source_names: name of each source; ``loss/<name>`` and ``token_acc/<name>`` are in the result if it has targets.
        group: of the ranks to sum over.
        over_ranks: sum over the ranks of ``group`` (all if None). Every rank must call it, with the same names.

    Returns:
        Nothing that has no targets is in it.
    """
    batches: list[SegmentLosses] = [losses] if isinstance(losses, SegmentLosses) else list(losses)
    if not batches:
        raise SettingsError("aggregate needs the losses of at least one batch")
    columns = [torch.cat([batch[place].detach() for batch in batches]) for place in range(3)]
    device = columns[0].device
    exact = torch.float32 if device.type == "mps" else torch.float64
    table = torch.stack([column.to(exact) for column in columns])
    sums = torch.zeros(3, len(source_names) + 1, dtype=exact, device=device)
    sums[:, -1] = table.sum(dim=1)
    if sources is not None:
        index = torch.as_tensor(sources, device=device).to(torch.int64)
        if len(index) != table.shape[1]:
            raise CollateError(f"{len(index)} sources were given for {table.shape[1]} segments")
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(source_names):
            raise CollateError(f"source {int(index.max())} has no name: {len(source_names)} source_names were given")
        sums.index_add_(1, index, table)
    if over_ranks:
        dist.all_reduce(sums, group=group)
    result = {}
    names = ["", *(f"/{name}" for name in source_names)]
    for name, (nll, targets, correct) in zip([*names[1:], names[0]], sums.T.tolist(), strict=True):
        if targets:
            result[f"loss{name}"] = nll / targets
            result[f"token_acc{name}"] = correct / targets
    return result


def global_sum(counts: Iterable[Any], *, group: Any = None, device: Any = None) -> float:
    """The denominator of a step: Σ over its micro-batches here and over all ranks. One collective of one number.

    Args:
        counts: of each micro-batch of this rank: ``num_loss_tokens``, the sum of its ``loss_weights``, or its number of
            pairs. An empty list is 0.
        group: the data-parallel ranks; those that hold parts of one sequence (CP) belong in it if they counted their
            parts, and not if they counted the whole. All ranks if None.
        device: where the backend wants the number: ``"cuda"`` for NCCL.

    Returns:
        The sum, on this rank alone where ``torch.distributed`` is not initialised.
    """
    total = sum(float(count) for count in counts)
    if not (dist.is_available() and dist.is_initialized()):
        return total
    number = torch.tensor([total], dtype=torch.float64, device=device)
    dist.all_reduce(number, group=group)
    return float(number.item())


def scale_for_ddp(loss_sum: torch.Tensor, *, denominator: float, dp_world_size: int) -> torch.Tensor:
    """What to call ``backward`` on, where gradients are averaged over the ranks (DDP, FSDP): Σ w·nll · ranks ÷ Σ w.

    The average divides by the ranks once more, and this undoes it. Nothing else divides: not the number of
    micro-batches. A step without any target gives a loss of 0 and no NaN.

    Args:
        loss_sum: of one micro-batch, from ``packed_loss_sum``.
        denominator: of the step, from ``global_sum``.
        dp_world_size: ranks that the gradient is averaged over; 1 where it is summed.
    """
    return loss_sum * (dp_world_size / denominator if denominator > 0 else 0.0)


class _TokenLoss(torch.autograd.Function):
    """Negative log likelihood of each target, 0 where there is none, chunk by chunk in float32.

    Keeps one float32 a token for the backward, which makes the softmax again: as Liger and others do.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses, norms = [], []
        at = 0
        for part in _chunks(logits):
            wanted = targets[at : at + len(part)]
            at += len(part)
            numbers = part.float()
            norm = numbers.logsumexp(dim=-1)
            # Only what is ignored is replaced: another label below 0 is an error, and no token.
            places = torch.where(wanted == IGNORE_INDEX, 0, wanted)
            hit = numbers.gather(1, places[:, None])[:, 0]
            losses.append(torch.where(wanted != IGNORE_INDEX, norm - hit, torch.zeros_like(norm)))
            norms.append(norm)
        ctx.save_for_backward(logits, targets, torch.cat(norms))
        return torch.cat(losses)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, targets, norms = ctx.saved_tensors
        result = torch.empty_like(logits)
        at = 0
        for part in _chunks(logits):
            here = slice(at, at + len(part))
            at += len(part)
            wanted, each = targets[here], torch.where(targets[here] != IGNORE_INDEX, grad[here], 0.0)
            numbers = (part.float() - norms[here, None]).exp_()
            numbers[torch.arange(len(part), device=part.device), wanted.clamp(min=0)] -= 1.0
            result[here] = numbers.mul_(each[:, None])
        return result, None


def _chunks(logits: torch.Tensor) -> Any:
    return logits.split(max(1, _CHUNK_LOGITS // max(1, logits.shape[-1])))


def _aligned(
    logits: torch.Tensor, labels: torch.Tensor, cu_seqlens: Any, labels_shifted: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logits as ``[T, V]``, and the target of each row or ``IGNORE_INDEX``, none across a boundary."""
    rows, flat = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).to(logits.device)
    if len(rows) != len(flat) or not len(rows):
        raise CollateError(f"logits of {len(rows):,} tokens and {len(flat):,} labels must be of one length, at least 1")
    targets = flat if labels_shifted else _shift(flat, IGNORE_INDEX)
    if cu_seqlens is not None:
        # Whatever the labels say: what the last token of a segment would predict is of another sample.
        ends = torch.as_tensor(cu_seqlens, device=rows.device)[1:].to(torch.int64)
        # Empty segments write behind the end, so that nothing here waits for the device.
        longer = torch.nn.functional.pad(targets, (0, 1))
        longer[torch.where(ends > 0, ends - 1, len(targets))] = IGNORE_INDEX
        targets = longer[:-1]
    return rows, targets


def _shift(values: torch.Tensor, fill: float) -> torch.Tensor:
    """One place to the left."""
    moved = torch.empty_like(values)
    moved[:-1] = values[1:]
    moved[-1] = fill
    return moved
