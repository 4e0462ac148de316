"""Losses of single samples, packed or not: an evaluation must not depend on how samples share
rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from brimful.base.checks import check_type, setting_number
from brimful.base.fingerprint import fingerprint_of
from brimful.base.typing import AnyIntArray, Fingerprint, Float64Array, Int64Array, SampleIds
from brimful.base.wording import counted
from brimful.collate.loss_torch import per_sample_loss
from brimful.collate.torch import PackCollator
from brimful.errors import SettingsError
from brimful.mixtures.source_losses import SourceCounts, SourceNames
from brimful.serve.pack_store import IndexedPacks
from brimful.store.shards import Pack, PackSequence

__all__ = ["SampleLosses", "evaluate_samples", "one_by_one"]


class SampleLosses(NamedTuple):
    """Losses of each segment, in the order of the packs; a sample that was split has several
    segments.

    Attributes:
        sample_ids: ``int64[n]``.
        nll_sum: ``float64[n]``: negative log likelihood of the targets, summed.
        num_targets, num_correct: ``int64[n]``.
    """

    sample_ids: SampleIds
    nll_sum: Float64Array
    num_targets: Int64Array
    num_correct: Int64Array

    @property
    def loss(self) -> float:
        """Mean over targets; NaN without any."""
        return self._mean_over_targets(self.nll_sum)

    @property
    def token_acc(self) -> float:
        """Share of the targets that the model finds most likely; NaN without any."""
        return self._mean_over_targets(self.num_correct)

    def _mean_over_targets(self, sums: Float64Array | AnyIntArray) -> float:
        num_targets = int(self.num_targets.sum())
        return float(sums.sum() / num_targets) if num_targets else float("nan")

    @property
    def loss_by_sample(self) -> dict[int, float]:
        """Mean loss of each sample that has targets, all its segments together."""
        # A sample that was split has several segments with the same id.
        ids, index = np.unique(self.sample_ids, return_inverse=True)
        sums = np.bincount(index, weights=self.nll_sum, minlength=len(ids))
        targets = np.bincount(index, weights=self.num_targets, minlength=len(ids))
        return {int(i): float(s / t) for i, s, t in zip(ids, sums, targets, strict=True) if t}

    def by_source(self, source_counts: SourceCounts) -> dict[str, SampleLosses]:
        """Return the losses of each source that has samples here, by source name.

        Args:
            source_counts: name and number of samples of each source, in order: ``source.rows.members``, the
                entry ``parts`` of ``LengthTable.provenance``, a mapping, or a plan with a mixture.

        Raises:
            SettingsError: a sample after the end of the last source.

        >>> losses = SampleLosses(np.array([0, 2]), np.array([4.0, 9.0]), np.array([2, 3]), np.array([1, 1]))
        >>> {name: part.loss for name, part in losses.by_source([("chat", 2), ("code", 5)]).items()}
        {'chat': 2.0, 'code': 3.0}
        """
        names = SourceNames(source_counts)
        sources = names.of(self.sample_ids)
        return {
            names.names[index]: SampleLosses(*(column[sources == index] for column in self))
            for index in np.unique(sources).tolist()
            if index >= 0
        }

    @classmethod
    def joined(cls, losses: Sequence[SampleLosses]) -> SampleLosses:
        """Join parts, one after the other."""
        return cls(*map(np.concatenate, zip(*losses, strict=True)))

    def __repr__(self) -> str:
        return (
            f"SampleLosses({len(self.sample_ids):,} segments, loss {self.loss:.4f}, token_acc "
            f"{self.token_acc:.4f})"
        )


def evaluate_samples(
    model: Any,
    packs: PackSequence,
    collator: PackCollator,
    *,
    packs_per_batch: int = 1,
    device: Any = None,
    dp_rank: int = 0,
    dp_world_size: int = 1,
    group: Any = None,
) -> SampleLosses:
    """Compute the loss of every sample, with the same result for packs and for ``one_by_one`` of
    the packs.

    A trainer's own ``eval_loss`` is a mean over batches of means over targets, so it depends on
    which samples share a batch; this loss does not. Batch ``b`` belongs to rank
    ``b % dp_world_size``. Every rank runs the model equally often, even with fewer packs than
    ranks: a rank without a pack repeats the first pack and counts nothing. If ``torch.distributed``
    is initialized, every rank gets the losses of all ranks.

    Args:
        model: called with the batch without its labels; returns ``logits``, or the logits.
        packs: a ``PackedDataset``, ``PackStore`` or list of packs.
        collator: of a dialect with one row for all packs of a batch (not ``llama_factory``,
            ``axolotl``, ``plain``).
        packs_per_batch: packs per forward pass.
        device: device of the batch; the model's device if None.
        dp_rank, dp_world_size: this data-parallel rank and their number.
        group: the process group of these ranks; all if None.

    Raises:
        SettingsError: a dialect with several rows or for models with other arguments; or no packs.
    """
    check_type(
        "model",
        model,
        torch.nn.Module,
        "a torch module",
        "the call is evaluate_samples(model, packs, collator)",
    )
    check_type("collator", collator, PackCollator, "a PackCollator")
    if (
        collator.dialect.row_per_pack
        or collator.dialect.labels_shifted
        or collator.dialect.name in ("plain", "verl")
    ):
        raise SettingsError(
            "evaluate_samples calls a model of Transformers with one row for all packs, and "
            f"dialect {collator.dialect.name!r} does not fit: use PackCollator(), or "
            "collator_for(model)"
        )
    dp_world_size = setting_number("dp_world_size", dp_world_size, minimum=1)
    dp_rank = setting_number("dp_rank", dp_rank, minimum=0, maximum=dp_world_size - 1)
    device = next(model.parameters()).device if device is None else torch.device(device)
    was_training = model.training
    model.eval()
    # A rank that only repeats the first pack has no losses.
    no_counts = np.empty(0, dtype=np.int64)
    all_losses = [SampleLosses(no_counts, np.empty(0, dtype=np.float64), no_counts, no_counts)]
    try:
        with torch.no_grad():
            # Sharded models gather their weights in each forward pass, so all ranks must run
            # equally many.
            stride = packs_per_batch * dp_world_size
            for first in range(0, len(packs), stride):
                start = first + dp_rank * packs_per_batch
                own = range(start, min(start + packs_per_batch, len(packs)))
                # Samples that share a trunk have losses of their own.
                (batch,) = collator.rows([packs[index].flat() for index in own or (0,)])
                # Without labels and weights the model computes no loss of its own.
                inputs = {
                    key: value.to(device) if isinstance(value, torch.Tensor) else value
                    for key, value in collator.convert([batch]).items()
                    if key not in ("labels", "loss_weights", "loss_scale")
                }
                output = model(**inputs)
                logits = getattr(output, "logits", output)
                labels = torch.from_numpy(batch.labels).to(device)
                if not own:
                    continue
                losses = per_sample_loss(logits, labels, batch.cu_seqlens, batch.num_segments)
                nll_sum, *counts = (column.cpu().numpy() for column in losses)
                all_losses.append(
                    SampleLosses(batch.sample_ids, nll_sum.astype(np.float64), *counts)
                )
    finally:
        model.train(was_training)
    if not len(packs):
        raise SettingsError("no packs to evaluate")
    if dp_world_size > 1 and dist.is_available() and dist.is_initialized():
        # In the order of the ranks; every rank must call it.
        gathered: list[Any] = [None] * dp_world_size
        dist.all_gather_object(gathered, SampleLosses.joined(all_losses), group=group)
        all_losses = gathered
    return SampleLosses.joined(all_losses)


def one_by_one(packs: PackSequence) -> _OneByOne:
    """Return a data set with one pack for each sample of the packs, for an evaluation without
    packing.

    ::

        packs       0 3 | 1 | 2 4
        one_by_one  0 | 3 | 1 | 2 | 4

    Every pack is read once to count its samples, so this is meant for evaluation sets.

    >>> from brimful.testing.toys import ToyPacks, toy_pack
    >>> alone = one_by_one(ToyPacks([toy_pack([4, 2]), toy_pack([3], first_sample=2)]))
    >>> len(alone), [pack.sample_ids.tolist() for pack in alone]
    (3, [[0], [1], [2]])
    """
    if not (hasattr(packs, "__getitem__") and hasattr(packs, "__len__")) or isinstance(packs, str):
        check_type("packs", packs, (), "a PackedDataset, a PackStore or a list of packs")
    return _OneByOne(packs)


class _OneByOne(IndexedPacks):
    """Packs of one sample each. Picklable, for the workers of a loader."""

    _noun = "sample"

    def __init__(self, packs: PackSequence) -> None:
        self._packs = packs
        self._ends = np.cumsum(
            [packs[index].num_samples for index in range(len(packs))], dtype=np.int64
        )

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of the packs, marked as ``one_by_one``."""
        return fingerprint_of(["one_by_one", getattr(self._packs, "fingerprint", None)])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def _pack(self, index: int) -> Pack:
        # Sample ``index`` is in the first pack whose end exceeds it; counted from the pack's end it
        # is negative.
        pack_index = int(np.searchsorted(self._ends, index, side="right"))
        pack = self._packs[pack_index].flat()
        segment = index - int(self._ends[pack_index]) + pack.num_segments
        return pack.take([segment])

    def __repr__(self) -> str:
        return f"one_by_one({counted(len(self), 'sample')} of {counted(len(self._ends), 'pack')})"
