"""What each target counts in the loss: the normalisers, as weights of tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from brimful.checks import choice_of
from brimful.errors import CollateError, SettingsError
from brimful.typing import IGNORE_INDEX, AnyIntArray, CuSeqlens, Int64Array, Labels

__all__ = ["Normaliser", "SegmentWeights", "count_targets", "segment_weights", "token_weights"]

Float64Array: TypeAlias = npt.NDArray[np.float64]
SegmentWeights: TypeAlias = Callable[[Int64Array], npt.ArrayLike] | Sequence[float] | npt.NDArray[np.floating]
"""A weight of our own: ``float[num_segments]``, or what makes it from ``int64[num_segments]`` targets."""


class Normaliser(str, Enum):
    """What counts the same in the loss of a step, Σ w·nll ÷ Σ w over all its micro-batches and ranks.

    With n the targets of a segment and N those of its group, each target has the weight w:
    """

    TOKEN = "token"
    """w = 1: every target. What one big batch without packing does. (Tulu 3; HBP)"""
    SAMPLE = "sample"
    """w = 1/n: every sample that has a target. (LongAlign)"""
    SQRT = "sqrt"
    """w = 1/√n: a sample counts as the root of its targets. (Molmo2, which has 4/√n)"""
    PAIR = "pair"
    """w = 1/N: every pair or group of samples that has a target; its samples share by their targets."""

    @classmethod
    def named(cls, name: Normaliser | str) -> Normaliser:
        """The member of that name."""
        return choice_of(cls, name, argument="normaliser", instead=", or weights of your own")


def count_targets(
    labels: Labels, cu_seqlens: CuSeqlens, num_segments: int, *, labels_shifted: bool = False
) -> Int64Array:
    """Targets of each segment; the token that nothing may predict is none, whatever its label says.

    Args:
        labels: ``int64[T]``, as ``PackedBatch`` has them; or shifted, so that place ``i`` holds what it predicts.
        cu_seqlens: ``int32[S + 1]``.
        num_segments: real segments, the first of the ``S``.
        labels_shifted: which of the two.

    Returns:
        ``int64[num_segments]``.

    >>> count_targets(np.array([7, 6, 7, -100, 9]), np.array([0, 3, 5], np.int32), 2).tolist()
    [2, 1]
    """
    is_target = labels != IGNORE_INDEX
    starts, ends = cu_seqlens[:num_segments], cu_seqlens[1 : num_segments + 1]
    real = starts < ends
    is_target[(ends - 1 if labels_shifted else starts)[real]] = False
    running = np.zeros(len(labels) + 1, dtype=np.int64)
    np.cumsum(is_target, out=running[1:])
    return running[ends] - running[starts]


def segment_weights(
    targets: AnyIntArray,
    normaliser: Normaliser | str | SegmentWeights,
    *,
    groups: AnyIntArray | Sequence[int] | None = None,
    scale: float = 1.0,
) -> Float64Array:
    """Weight of each target of a segment, by segment.

    It depends on the segment (or its group) alone and never on what else is in the batch; so any packing, number of ranks
    and accumulation gives the same sum. A constant factor changes nothing where Σ w divides.

    Pure: no I/O.

    ::

        targets 4 1        token   1    1       a target of the long one counts as one of the short one
                           sqrt    1/2  1
                           sample  1/4  1       both samples count 1 in all
                           pair    1/5  1/5     the two count 1 together (groups 0 0)

    Args:
        targets: ``int[num_segments]``.
        normaliser: a name, or weights of your own: one of each segment, or a function of ``targets`` that gives them.
        groups: ``int[num_segments]``, which pair each segment is of; all of a pair must be in one micro-batch.
        scale: a factor. For a trainer that divides by the number of targets instead of Σ w: the mean targets of a
            sample (its root for ``sqrt``; of a group for ``pair``) over the whole data set makes the two agree on
            average.

    Returns:
        ``float64[num_segments]``; 0 where a segment has no target.

    Raises:
        CollateError: weights that are negative, not finite, or too few.
        SettingsError: no such normaliser, or ``pair`` without groups.

    >>> segment_weights(np.array([4, 1, 0]), "sample").tolist()
    [0.25, 1.0, 0.0]
    """
    counts = np.asarray(targets, dtype=np.int64)
    if callable(normaliser) or not isinstance(normaliser, str):
        given = np.asarray(normaliser(counts) if callable(normaliser) else normaliser, dtype=np.float64)
        if given.shape != counts.shape:
            raise CollateError(f"{given.shape} weights were given for {len(counts)} segments: give one of each segment")
        weights = given
    else:
        kind = Normaliser.named(normaliser)
        divisor = counts
        if kind is Normaliser.PAIR:
            if groups is None:
                raise SettingsError("normaliser 'pair' needs groups: which pair each segment is of")
            _, place = np.unique(np.asarray(groups), return_inverse=True)
            if len(place) != len(counts):
                raise CollateError(
                    f"{len(place)} groups were given for {len(counts)} segments: give one of each segment"
                )
            divisor = np.bincount(place, weights=counts).astype(np.int64)[place]
        safe = np.maximum(divisor, 1).astype(np.float64)
        weights = 1.0 / (
            np.ones_like(safe) if kind is Normaliser.TOKEN else np.sqrt(safe) if kind is Normaliser.SQRT else safe
        )
    weights = np.where(counts > 0, weights * scale, 0.0)
    wrong = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(wrong):
        at = int(wrong[0])
        raise CollateError(f"segment {at} has weight {weights[at]}: weights must be finite and at least 0")
    return weights


def token_weights(
    labels: Labels,
    cu_seqlens: CuSeqlens,
    num_segments: int,
    normaliser: Normaliser | str | SegmentWeights,
    *,
    groups: AnyIntArray | Sequence[int] | None = None,
    scale: float = 1.0,
    labels_shifted: bool = False,
) -> npt.NDArray[np.float32]:
    """What each label of a batch counts in the loss: the ``loss_weights`` of a ``PackedBatch``.

    Args:
        labels, cu_seqlens, num_segments, labels_shifted: as in ``count_targets``.
        normaliser, groups, scale: as in ``segment_weights``.

    Returns:
        ``float32[T]`` beside the labels, shifted where they are; 0 where there is no target.

    >>> token_weights(np.array([-100, 6, 7, -100, 9]), np.array([0, 3, 5], np.int32), 2, "sample").tolist()
    [0.0, 0.5, 0.5, 0.0, 1.0]
    """
    targets = count_targets(labels, cu_seqlens, num_segments, labels_shifted=labels_shifted)
    each = segment_weights(targets, normaliser, groups=groups, scale=scale).astype(np.float32)
    lengths = cu_seqlens[1 : num_segments + 1] - cu_seqlens[:num_segments]
    weights = np.zeros(len(labels), dtype=np.float32)
    weights[: int(cu_seqlens[num_segments])] = np.repeat(each, lengths)
    weights[labels == IGNORE_INDEX] = 0.0
    starts, ends = cu_seqlens[:num_segments], cu_seqlens[1 : num_segments + 1]
    weights[(ends - 1 if labels_shifted else starts)[lengths > 0]] = 0.0
    return weights
