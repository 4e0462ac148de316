"""Normalizers of the loss, expressed as a weight of each token."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from brimful.base.checks import check_factor, choice_of
from brimful.base.ragged import offsets_of
from brimful.base.typing import (
    IGNORE_INDEX,
    AnyIntArray,
    BoolArray,
    CuSeqlens,
    Float32Array,
    Float64Array,
    Int64Array,
    Labels,
)
from brimful.errors import CollateError, SettingsError

__all__ = ["Normaliser", "SegmentWeights", "count_targets", "segment_weights", "token_weights"]

SegmentWeights: TypeAlias = (
    Callable[[Int64Array], npt.ArrayLike] | Sequence[float] | npt.NDArray[np.floating]
)
"""Custom weights: ``float[num_segments]``, or a function that returns them for
``int64[num_segments]`` targets.
"""


class Normaliser(str, Enum):
    """Unit that has equal weight in the loss of a step.

    The loss is Σ w·nll ÷ Σ w over all micro-batches and ranks. Each target has the weight w, where
    n is the number of targets of its segment and N that number for the segment's group:
    """

    TOKEN = "token"
    """w = 1: every target counts equally, as in one large batch without packing. (Tulu 3; HBP)"""
    SAMPLE = "sample"
    """w = 1/n: every sample with a target counts equally. (LongAlign)"""
    SQRT = "sqrt"
    """w = 1/√n: a sample counts √n in total. (Molmo2, with 4/√n)"""
    PAIR = "pair"
    """w = 1/N: every pair or group of samples with a target counts equally; its samples share by
    their targets.
    """

    @classmethod
    def named(cls, name: Normaliser | str) -> Normaliser:
        """Return the member with this name.

        Raises:
            SettingsError: no such member; lists all members.
        """
        return choice_of(cls, name, argument="normaliser", instead=", or weights of your own")


def count_targets(
    labels: Labels, cu_seqlens: CuSeqlens, num_segments: int, *, labels_shifted: bool = False
) -> Int64Array:
    """Count the targets of each segment, without its first token, which no token may predict.

    Args:
        labels: ``int64[T]``, as in ``PackedBatch``; or shifted, so that label ``i`` is the token
            that token ``i`` predicts.
        cu_seqlens: ``int32[S + 1]``.
        num_segments: real segments, the first of the ``S``.
        labels_shifted: true for shifted labels, whose segments have no target at their last token.

    Returns:
        ``int64[num_segments]``.

    >>> count_targets(np.array([7, 6, 7, -100, 9]), np.array([0, 3, 5], np.int32), 2).tolist()
    [2, 1]
    """
    num_targets_before = offsets_of(_is_target(labels, cu_seqlens, num_segments, labels_shifted))
    return np.diff(num_targets_before[cu_seqlens[: num_segments + 1]])


def segment_weights(
    targets: AnyIntArray,
    normaliser: Normaliser | str | SegmentWeights,
    *,
    groups: AnyIntArray | Sequence[int] | None = None,
    scale: float = 1.0,
) -> Float64Array:
    """Return the weight of each target of a segment, by segment.

    It depends only on the segment (or its group) and never on the rest of the batch, so any
    packing, number of ranks and accumulation gives the same sum. A constant factor changes nothing
    if the loss is divided by Σ w.

    Pure: no I/O.

    ::

        targets 4 1        token   1    1       targets of both samples count equally
                           sqrt    1/2  1
                           sample  1/4  1       both samples count 1 in total
                           pair    1/5  1/5     the two count 1 together (groups 0 0)

    Args:
        targets: ``int[num_segments]``.
        normaliser: a name, or custom weights: one for each segment, or a function from ``targets``
            to them.
        groups: ``int[num_segments]``, the pair of each segment; all segments of a pair must be in
            one micro-batch.
        scale: a factor. For a trainer that divides by the number of targets instead of Σ w: with
            the mean number of targets of a sample (its root for ``sqrt``; of a group for ``pair``)
            over the whole data set, both agree on average.

    Returns:
        ``float64[num_segments]``; 0 for a segment without a target.

    Raises:
        CollateError: weights that are negative, not finite, or too few.
        SettingsError: no such normalizer, ``pair`` without groups, or a scale that is not a number
            above 0.

    >>> segment_weights(np.array([4, 1, 0]), "sample").tolist()
    [0.25, 1.0, 0.0]
    """
    check_factor("scale", scale)
    counts = np.asarray(targets, dtype=np.int64)
    if callable(normaliser) or not isinstance(normaliser, str):
        weights = np.asarray(
            normaliser(counts) if callable(normaliser) else normaliser, dtype=np.float64
        )
        if weights.shape != counts.shape:
            raise CollateError(
                f"{weights.shape} weights were given for {len(counts)} segments: give one of each "
                "segment"
            )
    else:
        choice = Normaliser.named(normaliser)
        divisors = counts
        if choice is Normaliser.PAIR:
            if groups is None or len(groups) != len(counts):
                raise SettingsError(
                    f"normaliser 'pair' needs groups: the pair of each of {len(counts)} segments"
                )
            _, index = np.unique(np.asarray(groups), return_inverse=True)
            divisors = np.bincount(index, weights=counts).astype(np.int64)[index]
        # A segment without a target may divide by any number but 0: its weight becomes 0 below.
        divisors = np.ones_like(counts) if choice is Normaliser.TOKEN else np.maximum(divisors, 1)
        weights = 1.0 / (np.sqrt(divisors) if choice is Normaliser.SQRT else divisors)
    weights = np.where(counts > 0, weights * scale, 0.0)
    invalid = np.flatnonzero(~(np.isfinite(weights) & (weights >= 0)))
    if len(invalid):
        segment = int(invalid[0])
        raise CollateError(
            f"segment {segment} has weight {weights[segment]}: weights must be finite and at least "
            "0"
        )
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
) -> Float32Array:
    """Return the weight of each label of a batch: the ``loss_weights`` of a ``PackedBatch``.

    Args:
        labels, cu_seqlens, num_segments, labels_shifted: as in ``count_targets``.
        normaliser, groups, scale: as in ``segment_weights``.

    Returns:
        ``float32[T]``, aligned with the labels, shifted if they are; 0 without a target.

    >>> token_weights(np.array([-100, 6, 7, -100, 9]), np.array([0, 3, 5], np.int32), 2, "sample").tolist()
    [0.0, 0.5, 0.5, 0.0, 1.0]
    """
    targets = count_targets(labels, cu_seqlens, num_segments, labels_shifted=labels_shifted)
    weights_of_segments = segment_weights(targets, normaliser, groups=groups, scale=scale).astype(
        np.float32
    )
    weights: Float32Array = np.zeros(len(labels), dtype=np.float32)
    lengths = np.diff(cu_seqlens[: num_segments + 1])
    weights[: int(cu_seqlens[num_segments])] = np.repeat(weights_of_segments, lengths)
    weights[~_is_target(labels, cu_seqlens, num_segments, labels_shifted)] = 0.0
    return weights


def _is_target(
    labels: Labels, cu_seqlens: CuSeqlens, num_segments: int, labels_shifted: bool
) -> BoolArray:
    """Return ``bool[T]``, true at labels that count in the loss."""
    mask: BoolArray = labels != IGNORE_INDEX
    starts, ends = cu_seqlens[:num_segments], cu_seqlens[1 : num_segments + 1]
    # No token of a segment predicts its first token, whether or not its label is ignored; empty
    # segments have no tokens.
    mask[(ends - 1 if labels_shifted else starts)[starts < ends]] = False
    return mask
