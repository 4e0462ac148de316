"""DPO on packs: segments of both samples of each row, and a loss and metrics of Transformers' trainer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from brimful.base.typing import AnyIntArray, Int64Array
from brimful.collate.loss import count_targets
from brimful.errors import CollateError
from brimful.preferences.pair_loss import PreferenceLosses, preference_loss
from brimful.preferences.training import RowsCollator, collator_of, cu_seqlens_of, policy_and_reference, train_with
from brimful.store.shards import Pack

_FIX = "its packs were planned without their groups, or a batch takes samples apart"


def pair_segments(sample_ids: AnyIntArray | Sequence[int]) -> Int64Array:
    """Return the segments of each pair: ``int64[num_pairs, 2]``, the even sample first, in order of the even samples.

    Row ``n`` of a source is samples ``2n`` and ``2n + 1``: the chosen and the rejected answer of preferences; an answer
    and its mismatch of KTO, the answer first if it is desirable.

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
    chosen = np.flatnonzero(ids % 2 == 0)
    order = np.argsort(ids, kind="stable")
    ordered = ids[order]
    twice = np.flatnonzero(ordered[1:] == ordered[:-1])
    if len(twice):
        raise CollateError(
            f"sample {int(ordered[twice[0]])} is in this micro-batch twice, and a row has each of its samples once: {_FIX}"
        )
    mates = ids ^ 1
    is_alone = ~np.isin(mates, ids)
    if is_alone.any():
        segment = int(np.argmax(is_alone))
        raise CollateError(
            f"sample {int(ids[segment])} is in a micro-batch without sample {int(mates[segment])}, the other one of row "
            f"{int(ids[segment]) // 2} of preferences or KTO: {_FIX}"
        )
    rejected = order[np.searchsorted(ordered, ids[chosen] + 1)]
    return np.stack([chosen, rejected], axis=1).astype(np.int64)


__all__ = ["PreferenceCollator", "packed_preference_loss", "train_on_preferences"]

_PAIRS = "preference"


class PreferenceCollator(RowsCollator):
    """``PackCollator`` that adds the pairs of a batch and their reference log probabilities to it.

    The key ``preference`` holds tensors: ``cu_seqlens`` of the real segments, ``pairs`` (``int64[num_pairs, 2]``) and,
    with references, ``reference_logps`` (``float32[num_pairs, 2]``). Picklable, for the workers of a loader.

    Args:
        collator: of a dialect with one row for all packs of a batch and labels that are not shifted.
        references: of the same samples; None if the reference model runs in each step.

    >>> from brimful.collate.torch import PackCollator
    >>> from brimful.testing.toys import toy_pack
    >>> PreferenceCollator(PackCollator())([toy_pack([4, 2])])["preference"]["pairs"].tolist()
    [[0, 1]]
    """

    def __call__(self, features: Sequence[Pack]) -> dict[str, Any]:
        """Return one batch.

        Raises:
            CollateError: a chosen answer without its rejected one, or the reverse; see also ``PackCollator``.
            PlanMismatchError: a sample without a reference log probability.
        """
        (batch,) = self.collator.rows(features)
        pairs = pair_segments(batch.sample_ids)
        # A pack that only fills the last step of a rank has no targets; its pairs belong to another step.
        targets = count_targets(batch.labels, batch.cu_seqlens, batch.num_segments)
        pairs = pairs[targets[pairs].any(axis=1)]
        logps = self.reference_logps(features, (pack.num_loss_tokens > 0 for pack in features))
        extra = {
            "cu_seqlens": cu_seqlens_of(batch),
            "pairs": torch.from_numpy(pairs),
            **{name: torch.from_numpy(values[pairs]) for name, values in logps.items()},
        }
        return {**self.collator.speak([batch]), _PAIRS: extra}


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
    losses, reference_logps = policy_and_reference(model, reference_model, batch, extra=_PAIRS, segments="pairs")
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
    """Let a ``Trainer`` of Transformers train on packed pairs, with equal weight for each pair of a step.

    The loss of a step is the sum over its pairs, of all micro-batches and ranks, divided by their number. The metrics
    ``rewards/chosen``, ``rewards/rejected`` and ``rewards/accuracies`` of the last micro-batch are in
    ``trainer.preference_metrics``.

    Args:
        trainer: with a ``PreferenceCollator`` and packs of preferences.
        reference_model, beta, loss_type, label_smoothing: see ``packed_preference_loss``.

    Raises:
        SettingsError: another collator.
    """
    collator_of(trainer, PreferenceCollator, "train_on_preferences", "pairs")

    def count_pairs(batches: Sequence[dict[str, Any]], device: Any) -> torch.Tensor:
        count = torch.tensor(sum(len(batch[_PAIRS]["pairs"]) for batch in batches), device=device)
        total: torch.Tensor = trainer.accelerator.reduce(count, reduction="sum")
        return total

    def losses_of(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
        result = packed_preference_loss(
            model,
            inputs,
            reference_model=reference_model,
            beta=beta,
            loss_type=loss_type,
            label_smoothing=label_smoothing,
        )
        trainer.preference_metrics = {
            "rewards/chosen": float(result.chosen_rewards.mean()),
            "rewards/rejected": float(result.rejected_rewards.mean()),
            "rewards/accuracies": float(result.accuracy),
        }
        return result.losses

    train_with(trainer, reference_model, count_pairs, losses_of)
