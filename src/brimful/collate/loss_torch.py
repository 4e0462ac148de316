"""Loss of a packed batch in PyTorch: summed, weighted, by segment; and the denominator of a
step.
"""

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from brimful.base.typing import IGNORE_INDEX
from brimful.errors import CollateError, SettingsError

__all__ = [
    "SegmentLosses",
    "aggregate",
    "batch_loss_sum",
    "batch_weight",
    "global_sum",
    "packed_loss_sum",
    "per_sample_loss",
    "scale_for_ddp",
    "token_losses",
]

_CHUNK_LOGITS = 1 << 27
"""Logits held in float32 at a time: 512 MiB, about 880 tokens at a vocabulary of 152k."""


class SegmentLosses(NamedTuple):
    """Losses of the real segments of a batch, as sums without a denominator."""

    nll_sum: torch.Tensor
    """``float32[num_segments]``: negative log likelihood of the targets, summed. Differentiable."""
    num_targets: torch.Tensor
    """``int64[num_segments]``."""
    num_correct: torch.Tensor
    """``int64[num_segments]``: targets to which the model gives the highest logit."""


def packed_loss_sum(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    cu_seqlens: Any = None,
    loss_weights: torch.Tensor | None = None,
    labels_shifted: bool = False,
) -> torch.Tensor:
    """Return Σ w·nll over the targets of a batch.

    Divide it by the step's Σ w and by nothing else (``scale_for_ddp``). It makes no float32 copy of
    the logits: in addition to their gradient it takes memory for ``_CHUNK_LOGITS`` numbers.

    Args:
        logits: ``[T, V]`` or ``[1, T, V]``, of any floating type.
        labels: ``int64[T]`` or ``[1, T]``, not shifted: token ``i`` predicts label ``i + 1``.
            Shifted if ``labels_shifted``.
        cu_seqlens: boundaries; needed if the first label of a segment is possibly not ignored.
        loss_weights: ``float32[T]``, aligned with the labels; 1 at every target if None.

    Returns:
        A float32 scalar; 0 for a batch without targets, and differentiable then too.
    """
    token_logits, targets = _align(logits, labels, cu_seqlens, labels_shifted)
    nll: torch.Tensor = TokenLoss.apply(token_logits, targets)
    if loss_weights is None:
        return nll.sum()
    weights = loss_weights.reshape(-1).to(nll)
    if len(weights) != len(nll):
        raise CollateError(f"{len(weights):,} loss weights were given for {len(nll):,} tokens")
    return (nll * (weights if labels_shifted else shift_left(weights, 0.0))).sum()


def batch_loss_sum(logits: torch.Tensor, batch: Mapping[str, Any]) -> torch.Tensor:
    """Return Σ w·nll of a batch for Transformers, in either form of the loss of trees.

    Divide it by Σ w of the step (``batch_weight``), as with ``packed_loss_sum``.

    Args:
        logits: ``[B, T, V]``; or ``[M, V]`` if the batch has ``loss_index``: logits of the hidden
            states ``hidden[0, loss_index]``, which saves the head of all other tokens.
        batch: from ``PackCollator``, with labels that are not shifted, or with ``loss_index``.

    >>> batch = {"loss_index": torch.tensor([0, 0]), "loss_targets": torch.tensor([0, 1]), "loss_weights": torch.ones(2)}
    >>> round(float(batch_loss_sum(torch.tensor([[[0.0, 9.0]]]), batch)), 3)
    9.0
    """
    if "loss_index" not in batch:
        # Rows are joined into one; the first label of a row is ignored.
        return packed_loss_sum(
            logits, batch["labels"].flatten(), loss_weights=batch.get("loss_weights")
        )
    terms = logits if logits.dim() == 2 else logits[0, batch["loss_index"]]
    return packed_loss_sum(
        terms, batch["loss_targets"], loss_weights=batch["loss_weights"], labels_shifted=True
    )


def batch_weight(batch: Mapping[str, Any]) -> torch.Tensor:
    """Return Σ w of the targets of a batch, as ``batch_loss_sum`` weighs them: a float32 scalar.

    >>> float(batch_weight({"labels": torch.tensor([[-100, 3, -100, 4]])}))
    2.0
    """
    weights = batch.get("loss_weights")
    if weights is None:
        weights = batch["labels"] != IGNORE_INDEX
    weight: torch.Tensor = weights.sum(dtype=torch.float32)
    return weight


def per_sample_loss(
    logits: torch.Tensor,
    labels: torch.Tensor,
    cu_seqlens: Any,
    num_segments: int | None = None,
    *,
    labels_shifted: bool = False,
) -> SegmentLosses:
    """Return loss and hits of every sample of a packed batch.

    They equal the values from running each sample alone. Labels are shifted inside segments and
    never across boundaries: the last token of a segment predicts nothing.

    Args:
        logits, labels, labels_shifted: as in ``packed_loss_sum``.
        cu_seqlens: ``int32[S + 1]``, tensor or array.
        num_segments: real segments, the first of the ``S``; all if None.

    Returns:
        Sums for each real segment. A preference loss uses ``-nll_sum`` as the log probability of
        the response.

    >>> logits = torch.tensor([[0.0, 9.0], [9.0, 0.0], [0.0, 9.0], [0.0, 9.0]])
    >>> losses = per_sample_loss(logits, torch.tensor([-100, 1, -100, 0]), [0, 2, 4])
    >>> [round(loss, 3) for loss in losses.nll_sum.tolist()], losses.num_targets.tolist(), losses.num_correct.tolist()
    ([0.0, 9.0], [1, 1], [1, 0])
    """
    nll, is_target, is_correct = token_losses(
        logits, labels, cu_seqlens=cu_seqlens, labels_shifted=labels_shifted
    )
    device = nll.device
    ends = _ends(cu_seqlens, device)
    count = len(ends) if num_segments is None else num_segments
    # The segment of each token, computed on the device without synchronization; one extra sum for
    # the padding.
    segment = torch.bucketize(torch.arange(len(nll), device=device), ends, right=True).clamp_(
        max=len(ends)
    )

    def sum_by_segment(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        return torch.zeros(len(ends) + 1, dtype=dtype, device=device).index_add(
            0, segment, values.to(dtype)
        )[:count]

    nll_sum = sum_by_segment(nll, widest_float(device)).float()
    with torch.no_grad():
        num_targets = sum_by_segment(is_target, torch.int64)
        num_correct = sum_by_segment(is_correct, torch.int64)
    return SegmentLosses(nll_sum, num_targets, num_correct)


def token_losses(
    logits: torch.Tensor,
    labels: torch.Tensor,
    *,
    cu_seqlens: Any = None,
    labels_shifted: bool = False,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return loss, target and hit of each token, at the token that predicts.

    Args:
        logits, labels, cu_seqlens, labels_shifted: as in ``packed_loss_sum``; also ``[B, T, V]``
            and ``[B, T]``, with rows whose first label is ignored.

    Returns:
        ``float32[T]``, 0 without a target, differentiable; ``bool[T]``, true at a target; and
        ``bool[T]``, true at a target with the highest logit.
    """
    token_logits, targets = _align(logits, labels, cu_seqlens, labels_shifted)
    nll: torch.Tensor = TokenLoss.apply(token_logits, targets)
    with torch.no_grad():
        is_target = targets != IGNORE_INDEX
        is_correct = (
            torch.cat([chunk.argmax(dim=-1) for _, chunk in _chunks(token_logits)]) == targets
        )
    return nll, is_target, is_correct & is_target


def aggregate(
    losses: SegmentLosses | Sequence[SegmentLosses],
    *,
    sources: Any = None,
    source_names: Sequence[str] = (),
    group: Any = None,
    over_ranks: bool = False,
) -> dict[str, float]:
    """Return ``loss`` and ``token_acc`` as means over targets, for logs.

    Means of each source are added if sources are given.

    Args:
        losses: losses of one batch or of several.
        sources: ``int[segments]``, source of each segment of all batches, in order.
        source_names: name of each source; ``loss/<name>`` and ``token_acc/<name>`` are in the
            result if the source has targets.
        group: the process group of the ranks to sum over.
        over_ranks: sum over the ranks of ``group`` (all if None). Every rank must call it, with the
            same names.

    Returns:
        Means by name; sources without targets are left out.

    Raises:
        CollateError: sources that do not match the segments or the names.
        SettingsError: no losses at all.
    """
    batches: list[SegmentLosses] = [losses] if isinstance(losses, SegmentLosses) else list(losses)
    if not batches:
        raise SettingsError("aggregate needs the losses of at least one batch")
    columns = [
        torch.cat([field.detach() for field in fields]) for fields in zip(*batches, strict=True)
    ]
    device = columns[0].device
    dtype = widest_float(device)
    # In float64, if the device supports it, counts stay exact; one table needs one collective.
    table = torch.stack([column.to(dtype) for column in columns])
    # Columns of the sums: one for each source, then the total.
    sums = torch.zeros(3, len(source_names) + 1, dtype=dtype, device=device)
    sums[:, -1] = table.sum(dim=1)
    if sources is not None:
        index = torch.as_tensor(sources, device=device).to(torch.int64)
        if len(index) != table.shape[1]:
            raise CollateError(f"{len(index)} sources were given for {table.shape[1]} segments")
        if len(index) and not 0 <= int(index.min()) <= int(index.max()) < len(source_names):
            raise CollateError(
                f"source {int(index.max())} has no name: {len(source_names)} source_names were "
                "given"
            )
        sums.index_add_(1, index, table)
    if over_ranks:
        dist.all_reduce(sums, group=group)
    return means_by_name(sums, [*(f"/{name}" for name in source_names), ""])


def means_by_name(sums: torch.Tensor, suffixes: Sequence[str]) -> dict[str, float]:
    """Return ``loss`` and ``token_acc`` of each column that has targets, by its suffix.

    Args:
        sums: ``float[3, n]``: losses, targets, hits.
        suffixes: suffix of each column, appended to the names.
    """
    means = {}
    for suffix, (nll, targets, correct) in zip(suffixes, sums.T.tolist(), strict=True):
        if targets:
            means[f"loss{suffix}"] = nll / targets
            means[f"token_acc{suffix}"] = correct / targets
    return means


def global_sum(counts: Iterable[Any], *, group: Any = None, device: Any = None) -> float:
    """Return the denominator of a step: Σ over its micro-batches and over all ranks. One collective
    of one number.

    Args:
        counts: one number for each micro-batch of this rank: ``num_loss_tokens``, the sum of its
            ``loss_weights``, or its number of pairs. An empty list gives 0.
        group: the data-parallel ranks. Ranks that hold parts of one sequence (CP) belong to it if
            they counted their parts, but not if they counted the whole sequence. All ranks if None.
        device: the device that the backend reduces on: ``"cuda"`` for NCCL.

    Returns:
        The sum; only of this rank if ``torch.distributed`` is not initialized.
    """
    total = sum(float(count) for count in counts)
    if not (dist.is_available() and dist.is_initialized()):
        return total
    sum_tensor = torch.tensor([total], dtype=torch.float64, device=device)
    dist.all_reduce(sum_tensor, group=group)
    return float(sum_tensor.item())


def scale_for_ddp(
    loss_sum: torch.Tensor, *, denominator: float, dp_world_size: int
) -> torch.Tensor:
    """Return the loss for ``backward`` if gradients are averaged over the ranks (DDP, FSDP): Σ
    w·nll · ranks ÷ Σ w.

    The factor undoes the average over the ranks. Nothing else divides, not even the number of
    micro-batches. A step without any target gives a loss of 0, not NaN.

    Args:
        loss_sum: sum of one micro-batch, from ``packed_loss_sum``.
        denominator: denominator of the step, from ``global_sum``.
        dp_world_size: number of ranks that the gradient is averaged over; 1 if it is summed.

    Raises:
        CollateError: a denominator that is NaN, infinite or negative, or 0 for a sum that is not 0.
    """
    if not 0 <= denominator < math.inf or (denominator == 0 and loss_sum.item() != 0):
        raise CollateError(
            f"the denominator of a step must be its Σ w, from global_sum, and is {denominator} for "
            f"a loss sum of {loss_sum.item()}"
        )
    return loss_sum * (dp_world_size / denominator if denominator else 0.0)


class TokenLoss(torch.autograd.Function):
    """Negative log likelihood of each target, 0 at ignored tokens, chunk by chunk in float32.

    Keeps one float32 per token for the backward pass, which computes the softmax again, as Liger
    and others do.
    """

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        losses, norms = [], []
        for tokens, chunk in _chunks(logits):
            chunk_targets = targets[tokens]
            is_target = chunk_targets != IGNORE_INDEX
            chunk = chunk.float()
            norm = chunk.logsumexp(dim=-1)
            # Only IGNORE_INDEX is replaced: any other label below 0 is an error, not a token.
            target_logits = chunk.gather(1, torch.where(is_target, chunk_targets, 0)[:, None])[:, 0]
            losses.append(torch.where(is_target, norm - target_logits, torch.zeros_like(norm)))
            norms.append(norm)
        ctx.save_for_backward(logits, targets, torch.cat(norms))
        return torch.cat(losses)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None]:
        logits, targets, norms = ctx.saved_tensors
        result = torch.empty_like(logits)
        for tokens, chunk in _chunks(logits):
            chunk_targets = targets[tokens]
            token_grad = torch.where(chunk_targets != IGNORE_INDEX, grad[tokens], 0.0)
            # d nll / d logits = softmax - onehot(target); the gradient of an ignored token is 0 in
            # every column.
            softmax = (chunk.float() - norms[tokens, None]).exp_()
            softmax[torch.arange(len(chunk), device=chunk.device), chunk_targets.clamp(min=0)] -= (
                1.0
            )
            result[tokens] = softmax.mul_(token_grad[:, None])
        return result, None


def _chunks(logits: torch.Tensor) -> Iterator[tuple[slice, torch.Tensor]]:
    """Yield the token slice and the logits of each chunk: at most ``_CHUNK_LOGITS`` numbers, at
    least one token.
    """
    size = max(1, _CHUNK_LOGITS // max(1, logits.shape[-1]))
    for start in range(0, max(1, len(logits)), size):
        tokens = slice(start, start + size)
        yield tokens, logits[tokens]


def widest_float(device: torch.device) -> torch.dtype:
    """Return the float dtype of sums: float64 if the device supports it."""
    return torch.float32 if device.type == "mps" else torch.float64


def _ends(cu_seqlens: Any, device: torch.device) -> torch.Tensor:
    """Return ``int64[S]``: the index after the last token of each segment."""
    return torch.as_tensor(cu_seqlens, device=device)[1:].to(torch.int64)


def _align(
    logits: torch.Tensor, labels: torch.Tensor, cu_seqlens: Any, labels_shifted: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return logits as ``[T, V]``, and the target of each token, ``IGNORE_INDEX`` across a
    boundary.
    """
    token_logits, flat = logits.reshape(-1, logits.shape[-1]), labels.reshape(-1).to(logits.device)
    # A row of trees without a target has no terms, whose labels count as shifted.
    if len(token_logits) != len(flat) or not (len(flat) or labels_shifted):
        raise CollateError(
            f"logits of {len(token_logits):,} tokens and {len(flat):,} labels must be of one "
            "length, at least 1"
        )
    targets = flat if labels_shifted else shift_left(flat, IGNORE_INDEX)
    if cu_seqlens is not None:
        # The last token of a segment predicts nothing, even if the next segment's first label is
        # not ignored.
        ends = _ends(cu_seqlens, targets.device)
        # Empty segments write past the end, so that nothing here waits for the device.
        longer = torch.nn.functional.pad(targets, (0, 1))
        longer[torch.where(ends > 0, ends - 1, len(targets))] = IGNORE_INDEX
        targets = longer[:-1]
    return token_logits, targets


def shift_left(values: torch.Tensor, fill: float) -> torch.Tensor:
    """Shift values by one to the left, and put ``fill`` at the end."""
    return torch.nn.functional.pad(values[1:], (0, 1), value=fill)
