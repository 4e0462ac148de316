"""Ragged arrays: rows of different lengths in one flat array, row ``i`` at
``[offsets[i], offsets[i + 1])``.
"""

from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.base.typing import AnyArray, AnyIntArray, BoolArray, Int64Array, Offsets


def offsets_of(sizes: npt.ArrayLike) -> Offsets:
    """Return the offsets of rows of these sizes.

    Args:
        sizes: integers, one for each row.

    Returns:
        ``int64[num_rows + 1]``: 0, then the running sum.

    >>> offsets_of([2, 0, 3]).tolist()
    [0, 2, 2, 5]
    """
    sizes = np.asarray(sizes)
    offsets: Int64Array = np.zeros(len(sizes) + 1, dtype=np.int64)
    # In place: NumPy would first make a copy of other types.
    offsets[1:] = sizes
    np.cumsum(offsets, out=offsets)
    return offsets


def positions_type(count: int) -> type[np.signedinteger[Any]]:
    """Return the narrower of int32 and int64 that holds the positions of ``count`` elements.

    >>> positions_type(3).__name__
    'int32'
    """
    return np.int32 if count < 2**31 else np.int64


def starts_of(sizes: AnyArray) -> AnyArray:
    """Return the index of each row's first element in the flat array, in the type of the running
    sum.

    >>> starts_of(np.array([2, 0, 3])).tolist()
    [0, 2, 2]
    """
    starts: AnyArray = np.cumsum(sizes)
    starts -= sizes
    return starts


def sums_of(values: AnyIntArray | BoolArray, offsets: Offsets) -> Int64Array:
    """Add up the values of each row; 0 for a row without any.

    >>> sums_of(np.array([3, 5, 1]), np.array([0, 2, 2, 3])).tolist()
    [8, 0, 1]
    """
    sums_before = offsets_of(values)
    return sums_before[offsets[1:]] - sums_before[offsets[:-1]]


def ranges(starts: AnyIntArray, sizes: AnyIntArray) -> Int64Array:
    """Return the whole numbers of several ranges, one range after the other.

    Args:
        starts: first number of each range.
        sizes: number of elements of each range.

    Returns:
        ``int64[sum(sizes)]``.

    >>> ranges(np.array([5, 0]), np.array([2, 3])).tolist()
    [5, 6, 0, 1, 2]
    """
    # Element k of the flat result, in row i, is begins[i] + (k - starts[i]).
    shifts = np.asarray(starts, dtype=np.int64) - starts_of(sizes)
    values: Int64Array = np.arange(int(sizes.sum()), dtype=np.int64) + np.repeat(shifts, sizes)
    return values


def mask_of_ranges(starts: Int64Array, ends: Int64Array, count: int) -> BoolArray:
    """Mark the elements that lie in a range.

    Args:
        starts, ends: of ranges ``[begin, end)``, in any order; a range with ``end <= begin`` is
            empty.
        count: number of elements.

    Returns:
        ``bool[count]``.

    >>> mask_of_ranges(np.array([1, 3]), np.array([2, 5]), 6).tolist()
    [False, True, False, True, True, False]
    """
    ends = np.maximum(starts, ends)
    # Ranges that begin at each element, less the ranges that have ended there.
    changes = np.bincount(starts, minlength=count + 1) - np.bincount(ends, minlength=count + 1)
    depths = np.cumsum(changes[:count])
    return depths > 0
