"""Indices as Python's sequences take them: from either end, and slices."""

from __future__ import annotations

from typing import Any

from brimful.arguments import index_of

__all__ = ["position", "positions"]


def position(index: Any, size: int, noun: str) -> int:
    """The place from 0 on that an index means; negative ones count from the end.

    Args:
        index: any whole number, NumPy's too.
        size: of the sequence.
        noun: what it is a sequence of, for the message.

    Raises:
        IndexError: there is no such place.
        WrongTypeError: no whole number.

    >>> position(-1, 5, "pack")
    4
    """
    place = index_of(f"a {noun}", index)
    if not -size <= place < size:
        raise IndexError(
            f"{noun} {place} is not in 0 … {size - 1}" if size else f"there is no {noun} {place}: none at all"
        )
    return place % size


def positions(index: slice, size: int) -> range:
    """The places that a slice means.

    >>> list(positions(slice(-2, None), 5))
    [3, 4]
    """
    return range(*index.indices(size))
