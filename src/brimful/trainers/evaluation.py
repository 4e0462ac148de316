"""Losses of single samples, packed or not: an evaluation must not depend on how samples share rows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from brimful.checks import check_type
from brimful.collate.loss_torch import per_sample_loss
from brimful.collate.torch import PackCollator
from brimful.errors import SettingsError
from brimful.fingerprint import fingerprint_of
from brimful.messages import counted
from brimful.serve.pack_store import IndexedPacks
from brimful.shards import Pack, PackSequence, assemble_pack
from brimful.typing import AnyIntArray, Fingerprint, Float64Array, Int64Array, SampleIds

__all__ = ["SampleLosses", "evaluate_samples", "one_by_one"]


@dataclass(frozen=True, slots=True)
class SampleLosses:
    """Losses of each segment, in the order of the packs; a sample that was split has several.

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
        # A sample that was split is several segments of the same id.
        ids, index = np.unique(self.sample_ids, return_inverse=True)
        sums = np.bincount(index, weights=self.nll_sum, minlength=len(ids))
        targets = np.bincount(index, weights=self.num_targets, minlength=len(ids))
        return {int(i): float(s / t) for i, s, t in zip(ids, sums, targets, strict=True) if t}

    def __repr__(self) -> str:
        return f"SampleLosses({len(self.sample_ids):,} segments, loss {self.loss:.4f}, token_acc {self.token_acc:.4f})"


def evaluate_samples(
    model: Any, packs: PackSequence, collator: PackCollator, *, packs_per_batch: int = 1, device: Any = None
) -> SampleLosses:
    """Compute the loss of every sample, equal for packed samples and for ``one_by_one`` of them.

    A trainer's own ``eval_loss`` is a mean over batches of means over targets, and so depends on which samples share a
    batch; this one does not. On several ranks give each its part, and join the arrays.

    Args:
        model: called with the batch without its labels; returns ``logits``, or the logits.
        packs: a ``PackedDataset``, ``PackStore`` or list of packs.
        collator: of a dialect with one row for all packs of a batch (not ``llama_factory``, ``axolotl``, ``plain``).
        packs_per_batch: packs of one forward.
        device: device of the batch; that of the model if None.

    Raises:
        SettingsError: a dialect with rows, or one for models with other arguments; or no packs.
    """
    check_type(
        "model", model, torch.nn.Module, "a torch module", "the call is evaluate_samples(model, packs, collator)"
    )
    check_type("collator", collator, PackCollator, "a PackCollator")
    if collator.dialect.row_per_pack or collator.dialect.labels_shifted or collator.dialect.name in ("plain", "verl"):
        raise SettingsError(
            f"evaluate_samples calls a model of Transformers with one row for all packs, and dialect "
            f"{collator.dialect.name!r} is another: use PackCollator(), or collator_for(model)"
        )
    device = next(model.parameters()).device if device is None else torch.device(device)
    was_training = model.training
    model.eval()
    sample_ids, columns = [], []
    try:
        with torch.no_grad():
            for start in range(0, len(packs), packs_per_batch):
                end = min(start + packs_per_batch, len(packs))
                (batch,) = collator.rows([packs[index] for index in range(start, end)])
                # Without labels and weights the model computes no loss of its own.
                inputs = {
                    key: value.to(device) if isinstance(value, torch.Tensor) else value
                    for key, value in collator.speak([batch]).items()
                    if key not in ("labels", "loss_weights", "loss_scale")
                }
                output = model(**inputs)
                logits = getattr(output, "logits", output)
                labels = torch.from_numpy(batch.labels).to(device)
                losses = per_sample_loss(logits, labels, batch.cu_seqlens, batch.num_segments)
                columns.append([column.cpu().numpy() for column in losses])
                sample_ids.append(batch.sample_ids)
    finally:
        model.train(was_training)
    if not columns:
        raise SettingsError("there are no packs to evaluate")
    nll_sum, num_targets, num_correct = map(np.concatenate, zip(*columns, strict=True))
    return SampleLosses(np.concatenate(sample_ids), nll_sum.astype(np.float64), num_targets, num_correct)


def one_by_one(packs: PackSequence) -> _OneByOne:
    """Return the samples of packs as a data set of packs of one sample each: an evaluation without packing.

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
        self._ends = np.cumsum([packs[index].num_segments for index in range(len(packs))], dtype=np.int64)

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of the packs and of their separation."""
        return fingerprint_of(["one_by_one", getattr(self._packs, "fingerprint", None)])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def _pack(self, index: int) -> Pack:
        # Sample ``index`` is in the first pack whose end is behind it; counted from the pack's end it is negative.
        pack_index = int(np.searchsorted(self._ends, index, side="right"))
        pack = self._packs[pack_index]
        segment = index - int(self._ends[pack_index]) + pack.num_segments
        tokens, only = slice(*pack.cu_seqlens[segment : segment + 2]), slice(segment, segment + 1)
        return assemble_pack(
            [pack.input_ids[tokens]], [pack.loss_mask[tokens]], pack.sample_ids[only], pack.starts[only]
        )

    def __repr__(self) -> str:
        return f"one_by_one({counted(len(self), 'sample')} of {counted(len(self._ends), 'pack')})"
