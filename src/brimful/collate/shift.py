"""Left shift of labels inside each segment: no token predicts a token of the next sample."""

from typing import TypeVar

import numpy as np
import numpy.typing as npt

from brimful.base.typing import IGNORE_INDEX, CuSeqlens, Labels
from brimful.errors import SettingsError

_Number = TypeVar("_Number", np.int64, np.float32)


def shift_left(
    values: npt.NDArray[_Number], cu_seqlens: CuSeqlens, *, by: int, fill: int | float
) -> npt.NDArray[_Number]:
    """Shift each value ``by`` tokens to the left inside its segment.

    The end of each segment is filled with ``fill``.

    ::

        cu_seqlens  0       3   5         values  a b c | d e
        by=1                                      b c . | e .
        by=2                                      c . . | . .

    The last axis is the token axis. Segments may be shorter than ``by`` or empty. ``values`` is not changed.
    """
    size = values.shape[-1]
    result = np.full_like(values, fill)
    if by < size:
        result[..., : size - by] = values[..., by:]
    # The last ``by`` tokens of a segment now hold values of the next segment; a shorter segment has fewer such tokens.
    starts, ends = cu_seqlens[:-1], cu_seqlens[1:]
    for distance in range(1, by + 1):
        indices = ends - distance
        result[..., indices[indices >= starts]] = fill
    return result


def shift_labels(labels: Labels, cu_seqlens: CuSeqlens, *, by: int = 1) -> Labels:
    """Return labels for a model that does not shift itself: label ``i`` is the token that token ``i`` predicts.

    ``by=1`` is next-token prediction; ``by=k`` is the k-th head of multi-token prediction, for which Megatron rolls
    each segment of the pack (``_roll_tensor_packed_seq``).

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
