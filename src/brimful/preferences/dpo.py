"""DPO on packs: pairs of segments, and a loss and metrics of Transformers' trainer; the base of
KTO's collator and step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from brimful.base.checks import check_type
from brimful.base.typing import AnyIntArray, Int64Array
from brimful.collate.batch import PackedBatch
from brimful.collate.loss import count_targets
from brimful.collate.loss_torch import SegmentLosses, TokenLoss, per_sample_loss, widest_float
from brimful.collate.torch import PackCollator
from brimful.errors import CollateError, SettingsError
from brimful.integrations.trainers.loss_weights import replace_loss
from brimful.preferences.losses import PreferenceLosses, preference_loss
from brimful.preferences.references import ReferenceLogps
from brimful.store.shards import Pack
from brimful.trees.attention import batch_for
from brimful.trees.collate.visibility import targets_of_samples
from brimful.trees.pack_tree import tree_of

__all__ = ["PreferenceCollator", "packed_preference_loss", "pair_segments", "train_on_preferences"]

_PAIRS = "preference"
"""Key of a batch with its pairs."""


def pair_segments(sample_ids: AnyIntArray | Sequence[int]) -> Int64Array:
    """Return the segments of each pair: ``int64[num_pairs, 2]``, the even sample first, in order of
    the even samples.

    Row ``n`` of a source is samples ``2n`` and ``2n + 1``: the chosen and the rejected answer of
    preferences; an answer and its mismatch of KTO, the answer first if it is desirable.

    Pure: no I/O.

    Args:
        sample_ids: ``int64[num_segments]``, sample of each segment: ``PackedBatch.sample_ids``.

    Raises:
        CollateError: a sample without its mate, or a sample that occurs twice; names the sample.

    >>> pair_segments([6, 7, 3, 2]).tolist()
    [[0, 1], [3, 2]]
    """
    ids = np.array(sample_ids, dtype=np.int64)
    # An empty place has no samples and no targets: its segments are paired in their order.
    num_empty = int(np.count_nonzero(ids < 0))
    ids[ids < 0] = np.arange(num_empty) - 2 * num_empty
    order = np.argsort(ids, kind="stable")
    evens, odds = ids[order][::2], ids[order][1::2]
    if len(ids) % 2 or (evens % 2).any() or (evens + 1 != odds).any():
        for row in (ids // 2).tolist():
            samples = np.sort(ids[ids // 2 == row]).tolist()
            if samples != [2 * row, 2 * row + 1]:
                raise CollateError(
                    f"row {row} of preferences or KTO is in this micro-batch with samples "
                    f"{samples}, and each of its two belongs there once: its packs were planned "
                    "without their groups, or a batch takes samples apart"
                )
    pairs = order.reshape(-1, 2).astype(np.int64)
    return pairs[np.argsort(pairs[:, 0])]


class RowsCollator:
    """Base of collators that add the compared segments of a batch, and their reference log
    probabilities, to it.
    """

    def __init__(self, collator: PackCollator, references: ReferenceLogps | None = None) -> None:
        check_type("references", references, (ReferenceLogps, type(None)), "ReferenceLogps.open(…)")
        check_type("collator", collator, PackCollator, "a PackCollator")
        dialect = collator.dialect
        if dialect.row_per_pack or dialect.row_per_sample or dialect.labels_shifted:
            raise SettingsError(
                f"pairs are counted in one row of all packs, and dialect {dialect.name!r} does not "
                "fit: use PackCollator(), or collator_for(model)"
            )
        self.collator = collator
        self.references = references

    def compared(
        self, batch: PackedBatch, packs: Sequence[Pack], name: str, segments: Int64Array
    ) -> dict[str, Any]:
        """Return ``cu_seqlens`` of the real segments of a batch, the compared segments by their
        name, and with references their ``reference_logps``.

        Trees have the targets of each sample instead of ``cu_seqlens`` (``SampleTargets``) and
        ``num_samples``, and samples are compared. Packs that only complete a step
        have no references: theirs are zeros.
        """
        arrays = {"cu_seqlens": batch.cu_seqlens[: batch.num_segments + 1].copy(), name: segments}
        if batch.sharing is not None:
            arrays = {**targets_of_samples(batch)._asdict(), name: segments}
        extra: dict[str, Any] = {key: torch.from_numpy(array) for key, array in arrays.items()}
        if batch.sharing is not None:
            extra["num_samples"] = tree_of(batch).num_samples
        if self.references is not None:
            logps = [
                self.references.of(pack)
                if pack.num_loss_tokens
                else np.zeros(pack.num_samples, dtype=np.float32)
                for pack in packs
            ]
            extra["reference_logps"] = torch.from_numpy(np.concatenate(logps)[segments])
        return extra


def policy_and_reference(
    model: Any, reference_model: Any, batch: dict[str, Any], extra: str, segments: str
) -> tuple[SegmentLosses, torch.Tensor]:
    """Return the model's losses of all segments, and the reference's log probabilities of the
    compared segments.

    Args:
        model: of Transformers; called without labels, so that it computes no loss of its own.
        reference_model: runs without gradients; None if the batch has the reference log
            probabilities.
        batch: from a preference collator, on the device of the model. It is not changed.
        extra: key of the batch that holds ``cu_seqlens``, the segments and, with references,
            ``reference_logps``.
        segments: key in ``extra`` of the compared segments: ``int64[…]``, the shape of the second
            result.

    Raises:
        SettingsError: neither a reference model nor reference log probabilities, or both.
    """
    facts = batch[extra]
    if (reference_model is None) == ("reference_logps" not in facts):
        raise SettingsError(
            "a preference loss needs the reference once: give reference_model, or references to "
            "the collator"
        )
    inputs = {
        key: value
        for key, value in batch.items()
        if key not in (extra, "labels") and not key.startswith("loss_")
    }

    def losses_of(some_model: Any) -> SegmentLosses:
        output = some_model(**batch_for(some_model, inputs))
        logits = getattr(output, "logits", output)
        if "cu_seqlens" in facts:
            return per_sample_loss(logits, batch["labels"], facts["cu_seqlens"])
        return tree_sample_loss(
            logits, facts["predictors"], facts["targets"], facts["samples"], facts["num_samples"]
        )

    if reference_model is None:
        return losses_of(model), facts["reference_logps"]
    with torch.no_grad():
        reference_logps = -losses_of(reference_model).nll_sum[facts[segments]]
    return losses_of(model), reference_logps


def check_collator(trainer: Any, collator_class: type[RowsCollator]) -> None:
    """Refuse a ``Trainer`` of Transformers with a collator of another kind."""
    if not isinstance(trainer.data_collator, collator_class):
        raise SettingsError(
            f"the trainer has {type(trainer.data_collator).__name__}, and its batches need what a "
            f"{collator_class.__name__} adds: pass data_collator={collator_class.__name__}(collator_for(model), "
            "references)"
        )


def train_with(
    trainer: Any,
    reference_model: Any,
    count_rows: Callable[[Sequence[dict[str, Any]], Any], torch.Tensor],
    losses_of: Callable[[Any, dict[str, Any]], torch.Tensor],
) -> None:
    """Let a ``Trainer`` divide the sum of the losses of a step by its number of rows on all ranks.

    Args:
        trainer: of Transformers.
        reference_model: is frozen; None if references are in the batches.
        count_rows: function from the micro-batches of a step, and the device, to their rows on all
            ranks.
        losses_of: function from the model and a micro-batch to the losses of its rows.
    """
    if reference_model is not None:
        reference_model.eval().requires_grad_(False)

    def loss_of(model: Any, inputs: dict[str, Any]) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        losses = losses_of(model, inputs)
        return losses.sum(), {"losses": losses}

    replace_loss(trainer, count_rows, loss_of)


class PreferenceCollator(RowsCollator):
    """``PackCollator`` that adds the pairs of a batch and their reference log probabilities to it.

    The key ``preference`` holds tensors: ``cu_seqlens`` of the real segments, ``pairs``
    (``int64[num_pairs, 2]``) and, with references, ``reference_logps`` (``float32[num_pairs, 2]``).
    In trees, chosen and rejected share their prompt, and pairs are numbers of samples.
    Picklable, for the workers of a loader.

    Args:
        collator: of a dialect with one row for all packs of a batch and labels that are not
            shifted.
        references: of the same samples; None if the reference model runs in each step.

    >>> from brimful.collate.torch import PackCollator
    >>> from brimful.testing.toys import toy_pack
    >>> PreferenceCollator(PackCollator())([toy_pack([4, 2])])["preference"]["pairs"].tolist()
    [[0, 1]]
    """

    def __call__(self, features: Sequence[Pack]) -> dict[str, Any]:
        """Return one batch.

        Raises:
            CollateError: a chosen answer without its rejected one, or the reverse; see also
                ``PackCollator``.
            PlanMismatchError: a sample without a reference log probability.
        """
        (batch,) = self.collator.rows(features)
        # A pack that only fills the last step of a rank has no targets; its pairs belong to another
        # step.
        if batch.sharing is None:
            ids = batch.sample_ids
            targets = count_targets(batch.labels, batch.cu_seqlens, batch.num_segments)
        else:
            ids = batch.sample_ids[tree_of(batch).ends]
            targets = np.bincount(targets_of_samples(batch).samples, minlength=len(ids))
        pairs = pair_segments(ids)
        pairs = pairs[targets[pairs].any(axis=1)]
        extra = self.compared(batch, features, "pairs", pairs)
        return {**self.collator.convert([batch]), _PAIRS: extra}


def packed_preference_loss(
    model: Any,
    batch: dict[str, Any],
    *,
    reference_model: Any = None,
    beta: float = 0.1,
    loss_type: str = "sigmoid",
    label_smoothing: float = 0.0,
) -> PreferenceLosses:
    """Run a model on a batch of ``PreferenceCollator`` and return the loss of each pair.

    Args:
        model: of Transformers; called without labels.
        batch: of ``PreferenceCollator``, on the device of the model. It is not changed.
        reference_model: runs without gradients, if the batch has no reference log probabilities.
        beta, loss_type, label_smoothing: see ``preference_loss``.

    Raises:
        SettingsError: neither a reference model nor reference log probabilities, or both.
    """
    losses, reference_logps = policy_and_reference(model, reference_model, batch, _PAIRS, "pairs")
    return preference_loss(
        losses,
        batch[_PAIRS]["pairs"],
        reference_logps,
        beta=beta,
        loss_type=loss_type,
        label_smoothing=label_smoothing,
    )


def train_on_preferences(
    trainer: Any,
    *,
    reference_model: Any = None,
    beta: float = 0.1,
    loss_type: str = "sigmoid",
    label_smoothing: float = 0.0,
) -> None:
    """Let a ``Trainer`` of Transformers train on packed pairs, with equal weight for each pair of a
    step.

    The loss of a step is the sum over its pairs, of all micro-batches and ranks, divided by their
    number. The metrics ``rewards/chosen``, ``rewards/rejected`` and ``rewards/accuracies`` of the
    last micro-batch are in ``trainer.preference_metrics``.

    Args:
        trainer: with a ``PreferenceCollator`` and packs of preferences.
        reference_model, beta, loss_type, label_smoothing: see ``packed_preference_loss``.

    Raises:
        SettingsError: another collator.
    """
    check_collator(trainer, PreferenceCollator)

    def count_pairs(batches: Sequence[dict[str, Any]], device: Any) -> torch.Tensor:
        count = torch.tensor(sum(len(batch[_PAIRS]["pairs"]) for batch in batches), device=device)
        return trainer.accelerator.reduce(count, reduction="sum")  # type: ignore[no-any-return]

    def losses_of(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        result = packed_preference_loss(
            model,
            inputs,
            reference_model=reference_model,
            beta=beta,
            loss_type=loss_type,
            label_smoothing=label_smoothing,
        )
        if len(result.losses):  # a pack that fills an empty place has no pairs
            trainer.preference_metrics = {
                "rewards/chosen": float(result.chosen_rewards.mean()),
                "rewards/rejected": float(result.rejected_rewards.mean()),
                "rewards/accuracies": float(result.accuracy),
            }
        return result.losses

    train_with(trainer, reference_model, count_pairs, losses_of)


def tree_sample_loss(
    logits: torch.Tensor,
    predictors: torch.Tensor,
    targets: torch.Tensor,
    samples: torch.Tensor,
    num_samples: int,
) -> SegmentLosses:
    """Return loss and hits of every sample of a row of trees, equal to each sample alone.

    Args:
        logits: ``[T, V]`` or ``[1, T, V]``.
        predictors, targets, samples: ``int64[N]``, from ``targets_of_samples``: the place that predicts
            each target, the target, and its sample.
        num_samples: samples of the row.

    >>> logits = torch.tensor([[0.0, 9.0], [0.0, 9.0]])
    >>> losses = tree_sample_loss(logits, *map(torch.tensor, ([0, 0], [1, 0], [0, 1])), 2)
    >>> [round(loss, 3) for loss in losses.nll_sum.tolist()], losses.num_correct.tolist()
    ([0.0, 9.0], [1, 0])
    """
    rows = logits.reshape(-1, logits.shape[-1])[predictors]
    nll: torch.Tensor = TokenLoss.apply(rows, targets)

    def sum_by_sample(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
        zeros = torch.zeros(num_samples, dtype=dtype, device=nll.device)
        return zeros.index_add(0, samples, values.to(dtype))

    nll_sum = sum_by_sample(nll, widest_float(nll.device)).float()
    with torch.no_grad():
        num_targets = sum_by_sample(torch.ones_like(samples), torch.int64)
        num_correct = sum_by_sample(rows.argmax(dim=-1) == targets, torch.int64)
    return SegmentLosses(nll_sum, num_targets, num_correct)
