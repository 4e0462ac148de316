"""Random orders that are computed entry by entry: no keys to draw, nothing to sort.

Shuffling a hundred million items by sorting random keys takes ten times as long as packing them.
Instead, a keyed bijection permutes the numbers below a power of two with a few multiplications. It
is applied again to a result outside the range until the result is inside (cycle walking: Black and
Rogaway, "Ciphers with arbitrary finite domains", 2002).
"""

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from brimful.base.compiling import compiled
from brimful.base.rng import RandomStream, generator
from brimful.base.typing import AnyIntArray, Int64Array
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram

_ROUNDS = 4
"""Rounds of multiply, add and fold in one bijection."""

_DRAWS_PER_CLASS = 2 * _ROUNDS
"""Random words for one class: a factor and a summand for each round."""

_MIN_BITS = 6
"""Minimum bits of the numbers that the bijection permutes: with fewer bits it does not mix."""

_SMALL = 1 << _MIN_BITS
"""Items of a class up to which the bijection uses the minimum bits."""

_MAX_BITS = 32
"""Maximum bits: 32-bit arithmetic keeps the low half of a product, and classes have less than 2**32
items.
"""

_BLOCK = 1024
"""Numbers that the compiled form permutes together: they stay in the first-level cache and in
vector registers.
"""

_CHUNK = 1 << 16
"""Numbers that NumPy permutes together: they and their intermediate results stay in the cache."""

_UInt32Array = npt.NDArray[np.uint32]


def seeded_orders(
    lengths: AnyIntArray, items: Histogram, num_packs: int, *, seed: int | None, epoch: int
) -> tuple[AnyIntArray, AnyIntArray | None]:
    """Draw both orders of a plan: positions of the lengths, longest first, with equal lengths
    shuffled; and the place of each pack, as packs are opened longest first and served in an order
    independent of lengths.

    Args:
        lengths: ``int[num_items]``, each at least 1.
        items: their histogram.
        num_packs: at most ``num_items``.
        seed: None keeps equal lengths in order of position, and packs in order of opening.
        epoch: another epoch has other orders.

    >>> lengths = np.array([3, 3, 5, 1, 3], dtype=np.int32)
    >>> order, pack_indices = seeded_orders(lengths, Histogram.of(lengths), 4, seed=1, epoch=0)
    >>> order.tolist(), pack_indices.tolist()
    ([2, 1, 0, 4, 3], [3, 1, 0, 2])
    """
    order = decreasing_order(lengths, items)
    if seed is None:
        return order, None
    counts = np.ascontiguousarray(items.counts[::-1])
    companions = generator(seed=seed, epoch=epoch, purpose="companions")
    companion_draws = companions.words(len(counts) * _DRAWS_PER_CLASS)
    pack_draws = generator(seed=seed, epoch=epoch, purpose="pack order").words(_DRAWS_PER_CLASS)
    permute = compiled(_permute_in_blocks, len(order), sum_calls=True)
    _shuffle(order, counts, companion_draws, permute)
    pack_order: AnyIntArray = np.arange(num_packs, dtype=order.dtype)
    _shuffle(pack_order, np.array([num_packs], dtype=np.int64), pack_draws, permute)
    pack_indices = np.empty_like(pack_order)
    pack_indices[pack_order] = np.arange(num_packs, dtype=order.dtype)
    return order, pack_indices


def shuffle_classes(order: AnyIntArray, counts: Int64Array, stream: RandomStream) -> None:
    """Shuffle each class of some items separately, in place: the first ``counts[0]`` items, the
    next ``counts[1]``, ….

    Pure except for the stream, from which it takes the same words for the same number of classes.

    Args:
        order: ``int[num_items]``.
        counts: ``int64[num_classes]``, items of each class, that add up to ``num_items``.

    >>> from brimful.base.rng import generator
    >>> items = np.arange(8)
    >>> shuffle_classes(items, np.array([5, 3]), generator(seed=0, epoch=0, purpose="doc"))
    >>> items.tolist()
    [2, 1, 3, 0, 4, 6, 7, 5]
    """
    draws = stream.words(len(counts) * _DRAWS_PER_CLASS)
    _shuffle(order, counts, draws, compiled(_permute_in_blocks, len(order), sum_calls=True))


def _shuffle(
    order: AnyIntArray,
    counts: Int64Array,
    draws: npt.NDArray[np.uint64],
    permute: Callable[..., None] | None,
) -> None:
    keys, bits = _keys(counts, draws)
    if permute is None:
        _permute_in_numpy(counts, keys, bits, order)
    else:
        permute(counts, keys, bits, order, np.empty(int(counts.max(initial=0)), dtype=order.dtype))


def _keys(counts: Int64Array, draws: npt.NDArray[np.uint64]) -> tuple[_UInt32Array, Int64Array]:
    """Make the key of each class from random words: an odd factor and a summand for each round.

    Returns:
        The keys, ``uint32[num_classes, 2 · rounds]``; and ``int64[num_classes]``, bits of the
        numbers that the bijection of each class permutes.
    """
    keys = draws.astype(np.uint32).reshape(len(counts), _DRAWS_PER_CLASS)
    keys[:, ::2] |= np.uint32(1)
    # Bits of the largest number of each class; frexp of a whole number below 2**53 is exact.
    bits = np.maximum(np.frexp((counts - 1).astype(np.float64))[1], _MIN_BITS).astype(np.int64)
    assert int(bits.max(initial=0)) <= _MAX_BITS, "a class of 2**32 items or more"
    return keys, bits


def _permute_in_blocks(
    counts: Int64Array,
    keys: _UInt32Array,
    bits: Int64Array,
    order: AnyIntArray,
    scratch: AnyIntArray,
) -> None:
    """Permute each class, block by block; to be compiled.

    Loops over a block have no branches, so that they are vectorized. Shifts are masked to 31: only
    then does a vector hold eight 32-bit numbers instead of four 64-bit numbers, which take three
    times as long.

    Args:
        counts: ``int64[num_classes]``.
        keys, bits: from ``_keys``.
        order: ``int[sum(counts)]``, permuted in place.
        scratch: room for the largest class.
    """
    ramp = np.arange(_BLOCK).astype(np.uint32)
    result = np.empty(_BLOCK, dtype=np.uint32)
    values = np.empty(_BLOCK, dtype=np.uint32)
    slots = np.empty(_BLOCK, dtype=np.uint32)
    base = np.uint64(0)
    for class_index in range(len(counts)):
        count = counts[class_index]
        # A single item stays in place: most lengths of a small data set occur once, and the walk
        # would be long.
        if count == 1:
            base += np.uint64(1)
            continue
        size = np.uint32(count)
        mask = np.uint32((np.int64(1) << bits[class_index]) - 1)
        shift = np.uint32((bits[class_index] + 1) >> 1)
        if count <= _SMALL:
            # Tabulate the bijection: its walks take several times as many steps as the table has
            # entries.
            for i in range(_SMALL):
                values[i] = i
            for turn in range(_ROUNDS):
                factor, summand = keys[class_index, 2 * turn], keys[class_index, 2 * turn + 1]
                for i in range(_SMALL):
                    value = np.uint32(values[i] * factor + summand) & mask
                    values[i] = value ^ (value >> shift)
            for i in range(count):
                value = values[i]
                while value >= size:
                    value = values[value]
                scratch[i] = order[base + np.uint64(value)]
            for i in range(count):
                order[base + np.uint64(i)] = scratch[i]
            base += np.uint64(count)
            continue
        for start in range(0, count, _BLOCK):
            block = min(_BLOCK, count - start)
            for i in range(block):
                values[i] = np.uint32(start) + ramp[i]
                slots[i] = ramp[i]
            # Invariant: values[:num_outside] belong to slots[:num_outside], and are still outside
            # the range.
            num_outside = np.uint64(block)
            while num_outside > 0:
                for turn in range(_ROUNDS):
                    factor, summand = keys[class_index, 2 * turn], keys[class_index, 2 * turn + 1]
                    for i in range(num_outside):
                        value = np.uint32(values[i] * factor + summand) & mask
                        values[i] = value ^ (value >> (shift & np.uint32(31)))
                num_still_outside = np.uint64(0)
                for i in range(num_outside):
                    value, slot = values[i], slots[i]
                    result[slot] = value
                    values[num_still_outside] = value
                    slots[num_still_outside] = slot
                    num_still_outside += np.uint64(value >= size)
                num_outside = num_still_outside
            for i in range(block):
                scratch[np.uint64(start) + np.uint64(i)] = order[base + np.uint64(result[i])]
        # Blocks read from anywhere in the class, so it is written back only when all of them are
        # complete.
        for i in range(count):
            order[base + np.uint64(i)] = scratch[i]
        base += np.uint64(count)


def _permute_in_numpy(
    counts: Int64Array, keys: _UInt32Array, bits: Int64Array, order: AnyIntArray
) -> None:
    """Permute like ``_permute_in_blocks``: several small classes together, or a large class chunk
    by chunk.
    """
    ends = np.cumsum(counts)
    class_index = 0
    while class_index < len(counts):
        base = int(ends[class_index] - counts[class_index])
        # The classes that together fit one chunk, at least one class.
        stop = max(int(np.searchsorted(ends, base + _CHUNK, side="right")), class_index + 1)
        values = order[base : int(ends[stop - 1])].copy()
        for start in range(base, int(ends[stop - 1]), _CHUNK):
            end = min(start + _CHUNK, int(ends[stop - 1]))
            owners: slice | Int64Array = slice(class_index, class_index + 1)
            if stop > class_index + 1:
                owners = np.repeat(np.arange(class_index, stop), counts[class_index:stop])
            starts = (ends - counts)[owners]
            indices = starts + _permuted(
                (np.arange(start, end) - starts).astype(np.uint32), owners, counts, keys, bits
            )
            order[start:end] = values[indices - base]
        class_index = stop


def _permuted(
    ranks: _UInt32Array,
    owners: slice | Int64Array,
    counts: Int64Array,
    keys: _UInt32Array,
    bits: Int64Array,
) -> Int64Array:
    """Permute ranks within their classes; ``owners`` is the class of each rank, or the one class of
    all.
    """
    sizes = np.broadcast_to(counts[owners], ranks.shape)
    ranks = _apply_bijection(ranks, keys[owners], bits[owners])
    ranks[sizes == 1] = 0  # a single item stays in place
    outside = np.flatnonzero(ranks >= sizes)
    while len(outside):
        classes = owners if isinstance(owners, slice) else owners[outside]
        ranks[outside] = _apply_bijection(ranks[outside], keys[classes], bits[classes])
        outside = outside[ranks[outside] >= sizes[outside]]
    return ranks.astype(np.int64)


def _apply_bijection(values: _UInt32Array, keys: _UInt32Array, bits: Int64Array) -> _UInt32Array:
    """Apply the bijection once, to each number with its key or to all with one key; sums wrap
    around at 32 bits.
    """
    mask = ((np.int64(1) << bits) - 1).astype(np.uint32)
    shift = ((bits + 1) >> 1).astype(np.uint32)
    values = values.copy()
    for turn in range(_ROUNDS):
        values *= keys[:, 2 * turn]
        values += keys[:, 2 * turn + 1]
        values &= mask
        values ^= values >> shift
    return values
