"""KTO on packs: a collator that separates answers from KL completions, and a step's loss for
Transformers' ``Trainer``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from brimful.base.fingerprint import fingerprint_of
from brimful.base.typing import BoolArray, Fingerprint, Int64Array, LossMask
from brimful.collate.torch import PackCollator
from brimful.errors import CollateError, SettingsError
from brimful.preferences.dpo import (
    RowsCollator,
    check_collator,
    pair_segments,
    policy_and_reference,
    train_with,
)
from brimful.preferences.losses import KtoLosses, kto_loss
from brimful.preferences.references import ReferenceLogps
from brimful.serve.pack_store import IndexedPacks
from brimful.store.shards import Pack, PackSequence

__all__ = ["KtoCollator", "kl_sums", "packed_kto_loss", "train_on_kto", "with_mismatch_targets"]

_KTO = "kto"
"""Key of a batch with its rows."""


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

    Of samples ``2n`` and ``2n + 1`` one has targets: the answer of row ``n``, desirable if its
    number is even. The other has a completion of another row, for the KL term; it begins at the
    same token as the answer::

        sample    4          5             row 2 is desirable
        tokens    Q : 4      Q : 5 6
        targets       4                    of the KL completion: 5 6

    Raises:
        CollateError: a sample without its mate, a pair with targets on both, or a sample without
            its beginning.

    >>> from brimful.testing.toys import toy_pack
    >>> pack = toy_pack([4, 3])
    >>> pack.loss_mask[4:] = False
    >>> split_kl_completions(pack).is_desirable.tolist(), split_kl_completions(pack).kl_completions.loss_mask.tolist()
    ([True], [False, True, True])
    """
    pack = pack.flat()
    answers, others, targets, marked = _roles(pack)
    return AnswersAndKlCompletions(
        pack.take(answers.tolist()),
        replace(pack, loss_mask=marked).take(others.tolist()),
        pack.sample_ids[answers] % 2 == 0,
        targets[answers] > 0,
    )


def _roles(pack: Pack) -> tuple[Int64Array, Int64Array, Int64Array, LossMask]:
    """Return the segments of the answers and of the KL completions, the number of targets of all
    segments, and the targets of the pack and of its KL completions.
    """
    pairs = pair_segments(pack.sample_ids)
    targets = np.add.reduceat(pack.loss_mask.astype(np.int64), pack.cu_seqlens[:-1])
    both = (targets[pairs] > 0).all(axis=1)
    if both.any():
        raise CollateError(
            f"sample {int(pack.sample_ids[pairs[both][0, 0]])} and its mate both have targets, and "
            "a mismatch of KTO has none: pack rows of a format of KTO, or use PreferenceCollator"
        )
    cut = np.flatnonzero(pack.starts)
    if len(cut):
        raise CollateError(
            f"sample {int(pack.sample_ids[cut[0]])} lost its beginning, so the answer of its "
            "mismatch begins at an unknown token: pack rows of KTO with overflow drop or truncate"
        )
    rows = np.arange(len(pairs))
    slots = (targets[pairs[:, 1]] > 0).astype(np.int64)
    answers, others = pairs[rows, slots], pairs[rows, 1 - slots]
    marked = pack.loss_mask.copy()
    for answer, other in zip(answers.tolist(), others.tolist(), strict=True):
        start, stop = pack.cu_seqlens[answer : answer + 2].tolist()
        own = pack.loss_mask[start:stop]
        if own.any():
            first, last = pack.cu_seqlens[other : other + 2].tolist()
            # No token predicts the first token of a segment, so it is not a target.
            marked[min(first + max(int(own.argmax()), 1), last) : last] = True
    return answers, others, targets, marked


def with_mismatch_targets(packs: PackSequence) -> _KlTargetPacks:
    """Return KTO packs whose mismatches have their targets, only for ``compute_references``.

    >>> from brimful.testing.toys import ToyPacks, toy_pack
    >>> len(with_mismatch_targets(ToyPacks([toy_pack([4, 4])])))
    1
    """
    return _KlTargetPacks(packs)


class _KlTargetPacks(IndexedPacks):
    """KTO packs whose mismatches have their targets. Picklable, for the workers of a loader."""

    _noun = "pack"

    def __init__(self, packs: PackSequence) -> None:
        self._packs = packs

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of the packs and of these targets."""
        return fingerprint_of(["mismatches", getattr(self._packs, "fingerprint", None)])

    def __len__(self) -> int:
        return len(self._packs)

    def _pack(self, index: int) -> Pack:
        pack = self._packs[index].flat()
        return replace(pack, loss_mask=_roles(pack)[3])


class KtoCollator(RowsCollator):
    """``PackCollator`` for the answers in packs, with their labels; mismatches are kept separately.

    The batch itself holds only answers. The key ``kto`` holds tensors: ``cu_seqlens`` of the real
    segments, ``segments`` (``int64[num_rows]``), ``is_desirable`` (``bool[num_rows]``) and, with
    references, ``reference_logps`` (``float32[num_rows]``); and ``mismatches``, a batch of the
    mismatches of these rows with the same keys. So each token passes the model once, either with or
    without gradients, as in TRL. Picklable, for the workers of a loader.

    Args:
        collator: of a dialect with one row for all packs of a batch and labels that are not
            shifted.
        references: of the same packs ``with_mismatch_targets``; None if the reference model runs in
            each step.
        needs_kl: false leaves the mismatches out, for ``apo_zero_unpaired``.

    >>> from brimful.testing.toys import toy_pack
    >>> pack = toy_pack([4, 3])  # an answer, and its mismatch without targets
    >>> pack.loss_mask[4:] = False
    >>> batch = KtoCollator(PackCollator())([pack])
    >>> batch["input_ids"].shape[1], batch["kto"]["is_desirable"].tolist(), batch["kto"]["mismatches"]["input_ids"].shape[1]
    (4, [True], 3)
    """

    def __init__(
        self,
        collator: PackCollator,
        references: ReferenceLogps | None = None,
        *,
        needs_kl: bool = True,
    ) -> None:
        super().__init__(collator, references)
        self.needs_kl = needs_kl

    def __call__(self, features: Sequence[Pack]) -> dict[str, Any]:
        """Return one batch.

        Raises:
            CollateError: packs with samples that are not KTO samples, or rows that lost their
                beginning.
            PlanMismatchError: a sample without a reference log probability.
        """
        splits = [split_kl_completions(pack) for pack in features]
        batch, extra = self._batch([split.answers for split in splits], splits)
        if self.needs_kl:
            inputs, extra_of_kl = self._batch([split.kl_completions for split in splits], splits)
            extra["mismatches"] = {**inputs, _KTO: extra_of_kl}
        return {**batch, _KTO: extra}

    def _batch(
        self, packs: Sequence[Pack], splits: Sequence[AnswersAndKlCompletions]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        (batch,) = self.collator.rows(packs)
        # A pack that only fills the last step of a rank has no targets; its rows belong to another
        # step.
        is_row = np.concatenate([split.is_row for split in splits])
        extra = self.compared(batch, packs, "segments", np.flatnonzero(is_row))
        is_desirable = np.concatenate([split.is_desirable for split in splits])
        extra["is_desirable"] = torch.from_numpy(is_desirable[is_row])
        return self.collator.convert([batch]), extra


def kl_sums(model: Any, batch: dict[str, Any], *, reference_model: Any = None) -> torch.Tensor:
    """Return the sum of log π - log π_ref over the mismatches of a batch, and their number:
    ``float32[2]``.

    Add both over all micro-batches and ranks of a step; the first divided by the second is ``kl``
    of ``packed_kto_loss``. It computes no gradients.

    Args:
        model: of Transformers; called without labels.
        batch: of ``KtoCollator``, on the device of the model.
        reference_model: see ``packed_kto_loss``.

    Raises:
        SettingsError: a batch without mismatches; see also ``packed_kto_loss``.

    >>> from brimful.collate.torch import PackCollator
    >>> from brimful.testing.toys import toy_pack
    >>> def toy_model(input_ids, **_):  # all tokens equally likely
    ...     return torch.zeros(*input_ids.shape, 1000)
    >>> pack = toy_pack([4, 3])  # an answer, and its mismatch without targets
    >>> pack.loss_mask[4:] = False
    >>> batch = KtoCollator(PackCollator())([pack])
    >>> kl_sums(toy_model, batch, reference_model=toy_model).tolist()
    [0.0, 1.0]
    """
    mismatches = batch[_KTO].get("mismatches")
    if mismatches is None:
        raise SettingsError(
            "the batch has no mismatches: make it with KtoCollator(…, needs_kl=True)"
        )
    with torch.no_grad():
        losses, reference = policy_and_reference(
            model, reference_model, mismatches, _KTO, "segments"
        )
        ratios = -losses.nll_sum[mismatches[_KTO]["segments"]] - reference
        return torch.stack([ratios.sum(), torch.tensor(float(len(ratios)), device=ratios.device)])


def packed_kto_loss(
    model: Any,
    batch: dict[str, Any],
    *,
    kl: Any = None,
    reference_model: Any = None,
    beta: float = 0.1,
    loss_type: str = "kto",
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> KtoLosses:
    """Run a model on a batch of ``KtoCollator`` and return the loss of each row.

    Args:
        model: of Transformers; called without labels.
        batch: of ``KtoCollator``, on the device of the model. It is not changed.
        kl: KL term of the step, from ``kl_sums``; None for ``apo_zero_unpaired``.
        reference_model: runs without gradients, if the batch has no reference log probabilities.
        beta, loss_type, desirable_weight, undesirable_weight: see ``kto_loss``.

    Raises:
        SettingsError: neither a reference model nor reference log probabilities, or both; see also
            ``kto_loss``.

    >>> from brimful.collate.torch import PackCollator
    >>> from brimful.testing.toys import toy_pack
    >>> def toy_model(input_ids, **_):  # all tokens equally likely
    ...     return torch.zeros(*input_ids.shape, 1000)
    >>> pack = toy_pack([4, 3])  # an answer, and its mismatch without targets
    >>> pack.loss_mask[4:] = False
    >>> batch = KtoCollator(PackCollator())([pack])
    >>> result = packed_kto_loss(toy_model, batch, kl=0.0, reference_model=toy_model)
    >>> result.losses.tolist(), result.rewards.tolist()  # σ(0), since both models are the same
    ([0.5], [0.0])
    """
    losses, reference_logps = policy_and_reference(model, reference_model, batch, _KTO, "segments")
    facts = batch[_KTO]
    return kto_loss(
        losses,
        facts["segments"],
        facts["is_desirable"],
        reference_logps,
        kl=kl,
        beta=beta,
        loss_type=loss_type,
        desirable_weight=desirable_weight,
        undesirable_weight=undesirable_weight,
    )


def train_on_kto(
    trainer: Any,
    *,
    reference_model: Any = None,
    beta: float = 0.1,
    loss_type: str = "kto",
    desirable_weight: float = 1.0,
    undesirable_weight: float = 1.0,
) -> None:
    """Let a ``Trainer`` of Transformers train on packed KTO rows, with equal weight for each row of
    a step.

    The KL term is one number for a step: the mean over the mismatches of all its micro-batches and
    ranks, estimated before the first micro-batch. The loss is the sum over the rows of the step,
    divided by their number. ``trainer.kto_metrics`` holds ``kl`` of the step, and
    ``rewards/chosen`` and ``rewards/rejected``, the means over the rows that this rank has
    processed in the step so far; a label without rows has no key.

    Args:
        trainer: with a ``KtoCollator`` and KTO packs.
        reference_model, beta, loss_type, desirable_weight, undesirable_weight: see
            ``packed_kto_loss``.

    Raises:
        SettingsError: another collator, or a collator without the mismatches that the loss needs.

    >>> from types import SimpleNamespace
    >>> from brimful.collate.torch import PackCollator
    >>> trainer = SimpleNamespace(data_collator=KtoCollator(PackCollator(), needs_kl=False))  # of Transformers
    >>> train_on_kto(trainer, loss_type="apo_zero_unpaired")
    >>> trainer.compute_loss.__name__
    'compute_loss'
    """
    check_collator(trainer, KtoCollator)
    if loss_type == "kto" and not trainer.data_collator.needs_kl:
        raise SettingsError(
            "loss_type 'kto' needs the mismatches: leave needs_kl=False of KtoCollator out"
        )
    kl: torch.Tensor | None = None
    of_step: list[tuple[torch.Tensor, torch.Tensor]] = []
    """Rewards and labels of each micro-batch of the step."""

    def count_rows(batches: Sequence[dict[str, Any]], device: Any) -> torch.Tensor:
        nonlocal kl
        of_step.clear()
        model = trainer.model_wrapped
        sums = torch.zeros(3, device=device)
        for batch in batches:
            sums[2] += len(batch[_KTO]["segments"])
            if loss_type == "kto":
                with trainer.compute_loss_context_manager():
                    sums[:2] += kl_sums(
                        model, trainer._prepare_inputs(batch), reference_model=reference_model
                    )
        sums = trainer.accelerator.reduce(sums, reduction="sum")
        kl = (sums[0] / sums[1].clamp(min=1)).clamp(min=0) if loss_type == "kto" else None
        num_rows: torch.Tensor = sums[2]
        return num_rows

    def losses_of(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        result = packed_kto_loss(
            model,
            inputs,
            kl=kl,
            reference_model=reference_model,
            beta=beta,
            loss_type=loss_type,
            desirable_weight=desirable_weight,
            undesirable_weight=undesirable_weight,
        )
        of_step.append((result.rewards, inputs[_KTO]["is_desirable"]))
        rewards, is_desirable = map(torch.cat, zip(*of_step, strict=True))
        by_label = {
            "rewards/chosen": rewards[is_desirable],
            "rewards/rejected": rewards[~is_desirable],
        }
        means = {name: float(values.mean()) for name, values in by_label.items() if len(values)}
        trainer.kto_metrics = {"kl": 0.0 if kl is None else float(kl), **means}
        return result.losses

    train_with(trainer, reference_model, count_rows, losses_of)
