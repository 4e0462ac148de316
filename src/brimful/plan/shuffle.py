"""Random orders that are computed entry by entry: no keys to draw, nothing to sort.

Shuffling a hundred million items by sorting random keys takes ten times as long as packing them. A keyed bijection of
the numbers below a power of two costs a few multiplications, and one that leads out of the range wanted is applied
again until it leads in (cycle walking: Black and Rogaway, "Ciphers with arbitrary finite domains", 2002).
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from brimful.compiling import compiled
from brimful.rng import RandomStream
from brimful.typing import AnyIntArray, Int64Array

__all__ = ["random_order", "shuffle_classes"]

_ROUNDS = 4
_LEAST_BITS = 6
"""Of the numbers that the bijection works on: fewer have too few bits to mix."""

_CHUNK = 1 << 16
"""Entries that NumPy computes at a time: they and their intermediate results stay in the cache."""

_Words = npt.NDArray[np.uint64]


def shuffle_classes(order: AnyIntArray, counts: Int64Array, stream: RandomStream) -> AnyIntArray:
    """Shuffle each class of some items by itself: the first ``counts[0]`` items, the next ``counts[1]``, ….

    Pure but for the stream, from which it takes the same words for the same number of classes.

    Args:
        order: ``int[num_items]``.
        counts: ``int64[num_classes]``, items of each class, that add up to ``num_items``.

    Returns:
        The same items, in a new array of the same type.

    >>> from brimful.rng import generator
    >>> shuffle_classes(np.arange(8), np.array([5, 3]), generator(seed=0, epoch=0, purpose="doc")).tolist()
    [2, 1, 3, 0, 4, 6, 7, 5]
    """
    keys = _keys(len(counts), stream)
    shuffled = np.empty_like(order)
    shuffle = compiled(_shuffle, len(order)) or _shuffle_in_numpy
    shuffle(counts, keys, _bits(counts), order, shuffled)
    return shuffled


def random_order(count: int, stream: RandomStream) -> AnyIntArray:
    """The numbers 0 to count - 1 in random order: ``int32[count]``, or int64 where they need it.

    >>> from brimful.rng import generator
    >>> random_order(6, generator(seed=0, epoch=0, purpose="doc")).tolist()
    [2, 1, 3, 0, 4, 5]
    """
    numbers: AnyIntArray = np.empty(count, dtype=np.int32 if count < 2**31 else np.int64)
    counts = np.array([count], dtype=np.int64)
    shuffle = compiled(_shuffle, count) or _shuffle_in_numpy
    shuffle(counts, _keys(1, stream), _bits(counts), None, numbers)
    return numbers


def _keys(num_classes: int, stream: RandomStream) -> _Words:
    """``uint64[num_classes, 2 · rounds]``: an odd factor and a summand for each round."""
    keys = stream.words(num_classes * 2 * _ROUNDS).reshape(num_classes, 2 * _ROUNDS)
    keys[:, ::2] |= np.uint64(1)
    return keys


def _bits(counts: Int64Array) -> Int64Array:
    """``int64[num_classes]``: the least number of bits that the numbers of each class fit in."""
    exponents = np.frexp((counts - 1).astype(np.float64))[1]  # exact: of the largest number that is needed
    return np.maximum(exponents, _LEAST_BITS).astype(np.int64)


def _shuffle_in_numpy(
    counts: Int64Array, keys: _Words, bits: Int64Array, order: AnyIntArray | None, shuffled: AnyIntArray
) -> None:
    """``order`` is None for the numbers from 0 on, which need not be looked up."""
    ends = np.cumsum(counts)
    begin = 0
    while begin < len(shuffled):
        stop = min(begin + _CHUNK, len(shuffled))
        first = int(np.searchsorted(ends, begin, side="right"))
        last = int(np.searchsorted(ends, stop, side="left"))
        inside = np.minimum(ends[first : last + 1], stop) - np.maximum(ends - counts, begin)[first : last + 1]
        of_class: slice | Int64Array = slice(first, first + 1)
        if last > first:
            of_class = np.repeat(np.arange(first, last + 1), inside)
        base = (ends - counts)[of_class]
        ranks = (np.arange(begin, stop) - base).astype(np.uint64)
        ranks = _step(ranks, keys[of_class], bits[of_class])
        sizes = np.broadcast_to(counts[of_class].astype(np.uint64), ranks.shape)
        outside = np.flatnonzero(ranks >= sizes)
        while len(outside):
            which = of_class if isinstance(of_class, slice) else of_class[outside]
            ranks[outside] = _step(ranks[outside], keys[which], bits[which])
            outside = outside[ranks[outside] >= sizes[outside]]
        places = base + ranks.astype(np.int64)
        shuffled[begin:stop] = places if order is None else order[places]
        begin = stop


def _step(numbers: _Words, keys: _Words, bits: Int64Array) -> _Words:
    """One application of the bijection: entries with their keys, or all with the same."""
    mask = (np.uint64(1) << bits.astype(np.uint64)) - np.uint64(1)
    shift = (bits.astype(np.uint64) + np.uint64(1)) >> np.uint64(1)
    numbers = numbers.copy()
    for turn in range(_ROUNDS):
        numbers *= keys[:, 2 * turn]
        numbers += keys[:, 2 * turn + 1]
        numbers &= mask
        numbers ^= numbers >> shift
    return numbers


def _shuffle(
    counts: Int64Array, keys: _Words, bits: Int64Array, order: AnyIntArray | None, shuffled: AnyIntArray
) -> None:
    """The same, one entry after the other: compiled, or not run at all."""
    base = 0
    for number in range(len(counts)):
        size = np.uint64(counts[number])
        mask = (np.uint64(1) << np.uint64(bits[number])) - np.uint64(1)
        shift = np.uint64((bits[number] + 1) >> 1)
        m0, a0, m1, a1, m2, a2, m3, a3 = (
            keys[number, 0],
            keys[number, 1],
            keys[number, 2],
            keys[number, 3],
            keys[number, 4],
            keys[number, 5],
            keys[number, 6],
            keys[number, 7],
        )
        for rank in range(counts[number]):
            x = np.uint64(rank)
            while True:
                x = (x * m0 + a0) & mask
                x ^= x >> shift
                x = (x * m1 + a1) & mask
                x ^= x >> shift
                x = (x * m2 + a2) & mask
                x ^= x >> shift
                x = (x * m3 + a3) & mask
                x ^= x >> shift
                if x < size:
                    break
            place = base + np.int64(x)
            if order is None:
                shuffled[base + rank] = place
            else:
                shuffled[base + rank] = order[place]
        base += counts[number]
