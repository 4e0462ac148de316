"""Padding of a row: to a fixed length, to a multiple, or segment by segment; labels shifted inside
segments.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from math import lcm
from typing import Literal, TypeVar

import numpy as np
import numpy.typing as npt

from brimful.base.checks import is_whole_number
from brimful.base.typing import IGNORE_INDEX, CuSeqlens, Int32Array, Labels
from brimful.errors import SettingsError
from brimful.plan import Alignment

_SMALLEST_BUCKET = 128
"""Tokens in one tile of flash attention: a shorter segment costs the same as one of this length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Padding:
    """Padding policy: one object for all layouts and dialects.

    ::

        segments              a a a b b
        to=8                  a a a b b . . .       cu_seqlens  0 3 5 8      the tail is its own segment
        segment_multiple_of=4 a a a . b b . .       cu_seqlens  0 4 8        real  0 3 5
        num_segments=4, to=8  a a a b b . . .       cu_seqlens  0 3 5 8 8    the last is empty

    Attributes:
        to: fixed number of tokens of a row; None for the length of its packs.
        multiple_of: the length of a row is a multiple of this (tensor parallel, FP8).
        segment_multiple_of: the length of every segment, including the padding after it, is a
            multiple of this (context parallel: ``2 * cp``). Plan with lengths rounded up in the
            same way, or packs will not fit the row.
        max_seqlen: longest segment as passed to the kernels. None for the actual length;
            ``"bucket"`` for the next power of two, at least 128; a number for the same value in
            every batch, for compiled models and CUDA graphs.
        num_segments: fixed number of segments in ``cu_seqlens``, including the padding; empty
            segments at the end make up the difference. None for the number of segments in the
            batch.
        unit: the length of a row is a multiple of this; derived from the others.

    >>> Padding(to=8, segment_multiple_of=3)
    Traceback (most recent call last):
        ...
    brimful.errors.SettingsError: rows of 8 tokens cannot consist of multiples of 3: set to=9, or 6 if the model takes no more
    """

    to: int | None = None
    multiple_of: int = 1
    segment_multiple_of: int = 1
    max_seqlen: int | Literal["bucket"] | None = None
    num_segments: int | None = None
    unit: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        for name in ("to", "multiple_of", "segment_multiple_of", "max_seqlen", "num_segments"):
            value = getattr(self, name)
            if value is None or (name == "max_seqlen" and value == "bucket"):
                continue
            if not is_whole_number(value) or value < 1:
                raise SettingsError(
                    f"{'pad_to' if name == 'to' else name} must be at least 1 and is {value!r}"
                )
            # NumPy integers become Python integers: ``max_seqlen`` is a key of the kernels' caches.
            object.__setattr__(self, name, int(value))
        object.__setattr__(self, "unit", lcm(self.multiple_of, self.segment_multiple_of))
        if self.to is not None and self.to % self.unit:
            smaller = self.to // self.unit * self.unit
            raise SettingsError(
                f"rows of {self.to:,} tokens cannot consist of multiples of {self.unit:,}: "
                f"set to={smaller + self.unit}"
                + (f", or {smaller} if the model takes no more" if smaller else "")
            )

    def padded(self, lengths: Int32Array) -> Int32Array:
        """Return the lengths of segments, including the padding after each: ``int32[S]``."""
        unit = self.segment_multiple_of
        return lengths if unit == 1 else -(-lengths // unit) * unit

    def row_length(self, tokens: int) -> int:
        """Return the length of a row that holds ``tokens``, including the padding of segments.

        A fixed length is returned unchanged, even if the tokens do not fit.

        >>> Padding(multiple_of=8).row_length(13), Padding(to=16).row_length(13), Padding().row_length(13)
        (16, 16, 13)
        """
        return -(-tokens // self.unit) * self.unit if self.to is None else self.to

    def longest(self, tokens: int) -> int:
        """Return ``max_seqlen`` for a batch whose longest segment has ``tokens``.

        A fixed number is returned unchanged, even if it is below ``tokens``.

        >>> [Padding(max_seqlen=limit).longest(300) for limit in (None, "bucket", 4096)]
        [300, 512, 4096]
        """
        if self.max_seqlen is None:
            return tokens
        if self.max_seqlen == "bucket":
            return max(_SMALLEST_BUCKET, 1 << (tokens - 1).bit_length())
        return self.max_seqlen

    @classmethod
    def of_alignment(
        cls,
        alignment: Alignment,
        *,
        to: int | None = None,
        max_seqlen: int | Literal["bucket"] | None = None,
        num_segments: int | None = None,
    ) -> Padding:
        """Return the padding that a plan assumed.

        Rows of its packs then never exceed the capacity. ``Padding.of_alignment(plan.alignment)``
        for a plan, ``Padding.of_alignment(Alignment.of_parallelism(cp=2))`` for packs that were
        planned without an alignment.

        >>> Padding.of_alignment(Alignment.of_parallelism(tp=2, cp=2, sequence_parallel=True))
        Padding(to=None, multiple_of=4, segment_multiple_of=4, max_seqlen=None, num_segments=None)
        """
        return cls(
            to=to,
            multiple_of=alignment.total,
            segment_multiple_of=alignment.segment,
            max_seqlen=max_seqlen,
            num_segments=num_segments,
        )


_Value = TypeVar("_Value", np.int64, np.float32)


def shift_left(
    values: npt.NDArray[_Value], cu_seqlens: CuSeqlens, *, by: int, fill: int | float
) -> npt.NDArray[_Value]:
    """Shift each value ``by`` tokens to the left inside its segment.

    The end of each segment is filled with ``fill``.

    ::

        cu_seqlens  0       3   5         values  a b c | d e
        by=1                                      b c . | e .
        by=2                                      c . . | . .

    The last axis is the token axis. Segments may be shorter than ``by`` or empty. ``values`` is not
    changed.
    """
    size = values.shape[-1]
    result = np.full_like(values, fill)
    if by < size:
        result[..., : size - by] = values[..., by:]
    # The last ``by`` tokens of a segment now hold values of the next segment; a shorter segment has
    # fewer such tokens.
    starts, ends = cu_seqlens[:-1], cu_seqlens[1:]
    for distance in range(1, by + 1):
        indices = ends - distance
        result[..., indices[indices >= starts]] = fill
    return result


def shift_labels(labels: Labels, cu_seqlens: CuSeqlens, *, by: int = 1) -> Labels:
    """Return labels for a model that does not shift itself: label ``i`` is the token that token
    ``i`` predicts.

    ``by=1`` is next-token prediction; ``by=k`` is the k-th head of multi-token prediction, for
    which Megatron rolls each segment of the pack (``_roll_tensor_packed_seq``).

    Args:
        labels: ``int64[T]``, not shifted.
        cu_seqlens: ``int32[S + 1]``.
        by: at least 1.

    Raises:
        SettingsError: ``by`` below 1.

    >>> shift_labels(np.array([-100, 6, 7, -100, 9]), np.array([0, 3, 5], dtype=np.int32)).tolist()
    [6, 7, -100, 9, -100]
    >>> shift_labels(np.array([-100, 6, 7, -100, 9]), np.array([0, 3, 5], dtype=np.int32), by=2).tolist()
    [7, -100, -100, -100, -100]
    """
    if by < 1:
        raise SettingsError(f"labels are shifted by at least 1 and not by {by}")
    return shift_left(labels, cu_seqlens, by=by, fill=IGNORE_INDEX)
