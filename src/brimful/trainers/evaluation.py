"""Losses of single samples, packed or not: what an evaluation says must not depend on how samples share rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, overload

import numpy as np
import torch

from brimful.checks import check_type, position, positions
from brimful.collate.loss_torch import per_sample_loss
from brimful.collate.torch import PackCollator
from brimful.errors import SettingsError
from brimful.fingerprint import fingerprint_of
from brimful.messages import counted
from brimful.shards import Pack, PackSequence
from brimful.typing import Fingerprint, Int64Array, SampleIds

__all__ = ["SampleLosses", "evaluate_samples", "one_by_one"]


@dataclass(frozen=True, slots=True)
class SampleLosses:
    """One row for each segment, in the order of the packs; a sample that was split has several.

    Attributes:
        sample_ids: ``int64[n]``.
        nll_sum: ``float64[n]``: negative log likelihood of the targets, summed.
        num_targets, num_correct: ``int64[n]``.
    """

    sample_ids: SampleIds
    nll_sum: np.ndarray[Any, np.dtype[np.float64]]
    num_targets: Int64Array
    num_correct: Int64Array

    @property
    def loss(self) -> float:
        """Mean over targets; NaN without any."""
        return float(self.nll_sum.sum() / targets) if (targets := int(self.num_targets.sum())) else float("nan")

    @property
    def token_acc(self) -> float:
        """Share of the targets that the model finds most likely; NaN without any."""
        return float(self.num_correct.sum() / targets) if (targets := int(self.num_targets.sum())) else float("nan")

    @property
    def loss_by_sample(self) -> dict[int, float]:
        """Mean loss of each sample that has targets, all its segments together."""
        ids, place = np.unique(self.sample_ids, return_inverse=True)
        sums = np.bincount(place, weights=self.nll_sum, minlength=len(ids))
        targets = np.bincount(place, weights=self.num_targets, minlength=len(ids))
        return {int(i): float(s / t) for i, s, t in zip(ids, sums, targets, strict=True) if t}

    def __repr__(self) -> str:
        return f"SampleLosses({len(self.sample_ids):,} segments, loss {self.loss:.4f}, token_acc {self.token_acc:.4f})"


def evaluate_samples(
    model: Any, packs: PackSequence, collator: PackCollator, *, packs_per_batch: int = 1, device: Any = None
) -> SampleLosses:
    """Loss of every sample, equal for packed samples and for ``one_by_one`` of them.

    A trainer's own ``eval_loss`` is a mean over batches of means over targets, and so depends on which samples share a
    batch; this one does not. On several ranks give each its part, and join the arrays.

    Args:
        model: called with the batch without its labels; returns ``logits``, or the logits.
        packs: a ``PackedDataset``, ``PackStore`` or list of packs.
        collator: of a dialect with one row for all packs of a batch (not ``llama_factory``, ``axolotl``, ``plain``).
        packs_per_batch: packs of one forward.
        device: where the batch goes; where the model is if None.

    Raises:
        SettingsError: a dialect with rows, or one for models that are called otherwise.
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
    place = next(model.parameters()).device if device is None else torch.device(device)
    training = model.training
    model.eval()
    rows, found = [], []
    try:
        with torch.no_grad():
            for start in range(0, len(packs), packs_per_batch):
                (batch,) = collator.rows(
                    [packs[index] for index in range(start, min(start + packs_per_batch, len(packs)))]
                )
                inputs = {
                    key: value.to(place) if isinstance(value, torch.Tensor) else value
                    for key, value in collator.speak([batch]).items()
                    if key not in ("labels", "loss_weights", "loss_scale")
                }
                output = model(**inputs)
                logits = getattr(output, "logits", output)
                labels = torch.from_numpy(batch.labels).to(place)
                losses = per_sample_loss(logits, labels, batch.cu_seqlens, batch.num_segments)
                found.append([column.cpu().numpy() for column in losses])
                rows.append(batch.sample_ids)
    finally:
        model.train(training)
    if not rows:
        raise SettingsError("there are no packs to evaluate")
    nll, targets, correct = (np.concatenate([part[column] for part in found]) for column in range(3))
    return SampleLosses(np.concatenate(rows), nll.astype(np.float64), targets, correct)


def one_by_one(packs: PackSequence) -> _OneByOne:
    """The samples of packs as a data set of packs of one sample each: an evaluation without packing.

    ::

        packs       0 3 | 1 | 2 4
        one_by_one  0 | 3 | 1 | 2 | 4

    Reads every pack once to count its samples, which is meant for evaluation sets.

    >>> from brimful.testing.toys import ToyPacks, toy_pack
    >>> alone = one_by_one(ToyPacks([toy_pack([4, 2]), toy_pack([3], first_sample=2)]))
    >>> len(alone), [pack.sample_ids.tolist() for pack in alone]
    (3, [[0], [1], [2]])
    """
    if not (hasattr(packs, "__getitem__") and hasattr(packs, "__len__")) or isinstance(packs, str):
        check_type("packs", packs, (), "a PackedDataset, a PackStore or a list of packs")
    return _OneByOne(packs, [packs[index].num_segments for index in range(len(packs))])


class _OneByOne:
    """Picklable, for the workers of a loader."""

    def __init__(self, packs: PackSequence, counts: Sequence[int]) -> None:
        self._packs = packs
        self._ends = np.cumsum(counts, dtype=np.int64)

    @property
    def fingerprint(self) -> Fingerprint:
        """Of the packs, and of being apart."""
        return fingerprint_of(["one_by_one", getattr(self._packs, "fingerprint", None)])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    @overload
    def __getitem__(self, index: int) -> Pack: ...

    @overload
    def __getitem__(self, index: slice) -> list[Pack]: ...

    def __getitem__(self, index: int | slice) -> Pack | list[Pack]:
        if isinstance(index, slice):
            return [self[at] for at in positions(index, len(self))]
        index = position(index, len(self), "sample")
        owner = int(np.searchsorted(self._ends, index, side="right"))
        pack = self._packs[owner]
        segment = index - int(self._ends[owner]) + pack.num_segments
        here = slice(int(pack.cu_seqlens[segment]), int(pack.cu_seqlens[segment + 1]))
        return Pack(
            pack.input_ids[here],
            pack.loss_mask[here],
            np.array([0, here.stop - here.start], dtype=np.int32),
            pack.sample_ids[segment : segment + 1],
            pack.starts[segment : segment + 1],
        )

    def __iter__(self) -> Iterator[Pack]:
        return (self[index] for index in range(len(self)))

    def __repr__(self) -> str:
        return f"one_by_one({counted(len(self), 'sample')} of {counted(len(self._ends), 'pack')})"
