"""Whole numbers of samples, checked: lengths as ``int32``."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from brimful.base.checks import describe
from brimful.base.typing import IntArrayLike, Lengths
from brimful.errors import InvalidLengthsError

_MAX_LENGTH = 2**31 - 1
"""Largest length: they are int32."""


def as_lengths(lengths: IntArrayLike, name: str = "lengths") -> Lengths:
    """Convert one row of whole numbers to ``int32``; an ``int32`` array is returned unchanged.

    Raises:
        InvalidLengthsError: not one row, not whole numbers, or above 2**31 - 1.
    """
    if isinstance(lengths, (str, bytes)) or not (isinstance(lengths, Sequence) or hasattr(lengths, "__array__")):
        raise InvalidLengthsError(
            f"{name} must be whole numbers, one for each sample, and is {describe(lengths)}: open a file of lengths by "
            f"LengthTable.open or numpy.load, and measure data by measure_lengths"
        )
    try:
        array = np.asarray(lengths)
    except ValueError:  # rows of unequal length
        array = np.array([None])
    if array.size == 0:
        array = array.astype(np.int32)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InvalidLengthsError(f"{name} must be {_expectation(lengths, array)}")
    if array.dtype != np.int32:
        if int(array.max()) > _MAX_LENGTH:
            longest = int(np.argmax(array))
            raise InvalidLengthsError(
                f"{name}: sample {longest} has {int(array[longest]):,}, above the maximum, {_MAX_LENGTH:,}"
            )
        # The conversion would wrap around numbers of wider types.
        if int(array.min()) < -_MAX_LENGTH:
            raise InvalidLengthsError(f"{name}: sample {int(np.argmin(array))} has {int(array.min()):,}")
        array = array.astype(np.int32)
    return array


def _expectation(lengths: Any, array: np.ndarray[Any, Any]) -> str:
    """Return the end of the message ``… must be …``: expected numbers, and the first thing that differs."""
    items = lengths if isinstance(lengths, Sequence) else ()
    for index, item in enumerate(items):
        if not isinstance(item, (int, float, np.number)):
            return (
                f"whole numbers, one for each sample, and the one of sample {index} is {describe(item)}: give the "
                f"number of its tokens"
            )
    if array.ndim != 1:
        return f"one row of numbers and has shape {array.shape}"
    return f"whole numbers and are {array.dtype}"
