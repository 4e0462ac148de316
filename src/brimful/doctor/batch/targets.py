"""Targets of a batch: which token each position is trained to predict, however the batch says it."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from brimful.base.typing import IGNORE_INDEX, BoolArray, Int64Array
from brimful.doctor.batch.claims import Shape, per_token
from brimful.doctor.batch.words import BatchWord, Role

_MASKS_OF_ANSWERS = ("completion_mask", "assistant_masks")
"""Masks of TRL, which has labels or one of these."""

_MATCH = 0.8
"""Share of labels that must be tokens of the batch: a few may be replaced, as in distillation."""


class Labeling(str, Enum):
    """Ways to give targets."""

    AS_TOKENS = "as tokens"
    """The label of a token is the token itself: the model shifts."""
    SHIFTED = "shifted"
    """The label of a token is the next token: the model does not shift."""
    BY_MASK = "by mask"
    """No labels; a mask marks the tokens that are targets."""
    NONE = "none"
    """Nothing says what is trained: every token, as far as the batch tells."""
    OTHER = "other"
    """Labels that belong neither to their own token nor to the next one."""


@dataclass(frozen=True, eq=False)
class BatchTargets:
    """Targets of a batch, and the word that gives them.

    Attributes:
        targets: ``int64[B, T]``: the token that each position is trained to predict, -100 if none.
        labeling: how the targets are given.
        labels: ``int64[B, T]``, as the batch has them, -100 where a mask leaves them out; None
            without labels.
        labels_word: the labels, or the mask of targets; None without either.
    """

    targets: Int64Array
    labeling: Labeling
    labels: Int64Array | None = None
    labels_word: BatchWord | None = None

    @staticmethod
    def of(
        words: Sequence[BatchWord], ids: Int64Array, row_lengths: Int64Array, starts: Int64Array
    ) -> "BatchTargets":
        """Read the targets of a batch.

        Args:
            words: of the batch.
            ids: ``int64[B, T]``.
            row_lengths: ``int64[B]``.
            starts: first token of each place in the flattened batch.
        """
        shape: Shape = (ids.shape[0], ids.shape[1])
        mask, mask_word = _loss_mask(words, shape)
        word, labels = _labels(words, shape)
        if word is None or labels is None:
            has_next = np.arange(1, shape[1] + 1) < row_lengths[:, None]
            if mask is None:
                return BatchTargets(_shifted(ids, has_next), Labeling.NONE)
            is_target = has_next & np.append(mask[:, 1:], mask[:, :1], axis=1)
            return BatchTargets(_shifted(ids, is_target), Labeling.BY_MASK, labels_word=mask_word)
        is_target = labels >= 0 if mask is None else (labels >= 0) & mask
        labels = np.where(is_target, labels, IGNORE_INDEX)
        labeling = Labeling.SHIFTED
        if word.role is not Role.SHIFTED_LABELS:
            labeling = labeling_of(labels, ids, starts)
        if labeling is Labeling.AS_TOKENS:
            has_next = np.arange(1, shape[1] + 1) < shape[1]
            return BatchTargets(_shifted(labels, has_next), labeling, labels, word)
        return BatchTargets(labels, labeling, labels, word)


def _shifted(values: Int64Array, mask: BoolArray) -> Int64Array:
    """Return the next value of each place of a mask, and -100 at the others."""
    return np.where(mask, np.roll(values, -1, axis=1), IGNORE_INDEX)


def _labels(words: Sequence[BatchWord], shape: Shape) -> tuple[BatchWord | None, Int64Array | None]:
    for role in (Role.SHIFTED_LABELS, Role.LABELS):
        for word in words:
            if word.role is role:
                labels = per_token(word.array, shape, IGNORE_INDEX)
                if labels is not None and labels.ndim == 2 and labels.dtype.kind in "iu":
                    return word, labels.astype(np.int64)
    return None, None


def _loss_mask(
    words: Sequence[BatchWord], shape: Shape
) -> tuple[BoolArray | None, BatchWord | None]:
    """Return the tokens that a mask marks as targets; several masks must all mark them."""
    mask, first = None, None
    has_labels = any(word.role in (Role.LABELS, Role.SHIFTED_LABELS) for word in words)
    for word in words:
        # Masks of answers are made into labels; next to labels they mean nothing.
        if word.role is Role.LOSS_MASK and not (has_labels and word.name in _MASKS_OF_ANSWERS):
            values = per_token(word.array, shape)
            if values is not None and values.ndim == 2:
                mask = values != 0 if mask is None else mask & (values != 0)
                first = first or word
    return mask, first


def labeling_of(labels: Int64Array, ids: Int64Array, starts: Int64Array) -> Labeling:
    """Return whether labels are the tokens themselves, or the next tokens.

    Args:
        labels: ``int64[B, T]``, -100 if not a target.
        ids: ``int64[B, T]``.
        starts: first token of each segment in the flattened batch: a row of one repeated token
            fits both, and is read so that no target crosses a segment.

    >>> labeling_of(np.array([[6, 7, -100]]), np.array([[5, 6, 7]]), np.array([0])).value
    'shifted'
    """
    is_target = labels != IGNORE_INDEX
    # The label of the last token of a row is none of its tokens.
    has_next = is_target[:, :-1]
    num_labels, num_inner = int(is_target.sum()), int(has_next.sum())
    num_own = int((labels == ids)[is_target].sum())
    num_next = int((labels[:, :-1] == ids[:, 1:])[has_next].sum())
    if num_own == num_labels and num_next == num_inner:
        flat = is_target.reshape(-1)
        crossings = int(flat[starts].sum())
        crossings_if_shifted = int(flat[starts[1:] - 1].sum()) + int(flat[-1])
        is_shifted = crossings > crossings_if_shifted
        return Labeling.SHIFTED if is_shifted else Labeling.AS_TOKENS
    if num_own == num_labels or (num_own > num_next and num_own >= _MATCH * num_labels):
        return Labeling.AS_TOKENS
    is_shifted = num_next > num_own and num_next >= _MATCH * num_inner
    return Labeling.SHIFTED if is_shifted else Labeling.OTHER
