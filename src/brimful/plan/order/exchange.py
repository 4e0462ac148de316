"""Segments exchanged between packs, so that packs look like the data, at no cost in fill.

Decreasing algorithms place the longest items first, so a pack holds similar lengths: long ones in
one pack, forty short ones in another. Two steps mix them without changing the number of packs:
``shuffle.companion_order`` shuffles items of equal length before packs are filled, and
``exchange_segments`` exchanges segments of the same total length between packs afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.ragged import offsets_of, ranges
from brimful.base.rng import RandomStream, generator
from brimful.base.typing import AnyIntArray, BoolArray, Int64Array, Offsets
from brimful.plan.counts.histogram import Histogram
from brimful.plan.order.shuffle import random_order
from brimful.plan.packing import Packing, loads_of, tokens_of


def repack_underfilled(
    packing: Packing,
    sizes: AnyIntArray,
    *,
    capacities: Int64Array,
    min_fill: float,
    repack: Callable[[AnyIntArray], Packing],
) -> tuple[Packing, tuple[int, int]]:
    """Pack the items of packs below a minimum fill again; packs that are still below it come last.

    ::

        capacity 10, min_fill 0.7       6 · 9 · 5 · 3 1 · 8
        below: 6, 5, 3 1                taken apart: 6 5 3 1
        packed again                    6 3 1 · 5
        result                          9 · 8 · 6 3 1 · 5          5 comes last: nothing is dropped

    A pack is as full as its fullest budget: a pack that is full of images cannot take more text.
    Packing again helps if items were packed in their order or in phases; after a decreasing
    algorithm it changes little except the order: steps begin with full packs, and the few others
    are together.

    Pure if ``repack`` is.

    Args:
        packing: packs of the items.
        sizes: ``int[num_items]`` or ``int[num_items, num_budgets]``.
        capacities: ``int64[num_budgets]``.
        min_fill: share of a capacity, from 0 to 1.
        repack: packs items, given their sizes.

    Returns:
        Every item, in at most as many packs as before; and how many packs are below the fill,
        before and in the result.

    >>> from brimful.plan.fit.any_fit import first_fit
    >>> sizes = np.array([6, 9, 5, 3, 1, 8])
    >>> packs = Packing(np.array([0, 1, 2, 3, 5, 6]), np.arange(6))
    >>> repack = lambda some_sizes: first_fit(some_sizes, capacity=10)
    >>> result, below = repack_underfilled(packs, sizes, capacities=np.array([10]), min_fill=0.7, repack=repack)
    >>> result.as_lists(), below
    ([[1], [5], [0, 3, 4], [2]], (3, 1))
    """
    thresholds = np.array([ceil(tokens_of(min_fill, capacity)) for capacity in capacities.tolist()])

    def is_below(some_packs: Packing, some_sizes: AnyIntArray) -> BoolArray:
        loads = loads_of(some_packs, some_sizes)
        below: BoolArray = np.asarray((loads.reshape(-1, len(thresholds)) < thresholds).all(axis=1))
        return below

    underfilled = is_below(packing, sizes)
    num_underfilled = int(np.count_nonzero(underfilled))
    if num_underfilled == 0:
        return packing, (0, 0)
    candidates = packing.take(np.flatnonzero(underfilled))
    candidate_sizes = sizes[candidates.items]
    repacked = repack(candidate_sizes)
    num_repacked_below = int(np.count_nonzero(is_below(repacked, candidate_sizes)))
    if len(repacked) <= num_underfilled and num_repacked_below < num_underfilled:
        candidates = Packing(repacked.offsets, candidates.items[repacked.items])
    still_below = is_below(candidates, sizes)
    full = packing.take(np.flatnonzero(~underfilled))
    result = full.joined(candidates.take(np.argsort(still_below, kind="stable")))
    return result, (num_underfilled, int(np.count_nonzero(still_below)))


_BLOCK_PACKS = 1 << 16
"""Packs of a block, which exchange with each other: they stay in the cache, and their numbers fit
16 bits of a key.
"""

_MIN_ROUNDS = 32
"""Minimum rounds: after these, few segments still share a pack with their original companions."""

_MAX_ROUNDS = 512
"""Maximum rounds."""

_ROUNDS_BETWEEN_CHECKS = 16
"""Rounds between two measurements of the gain."""

_MIN_GAIN = 0.01
"""Share of the difference among packs that these rounds must remove; otherwise the exchange
ends.
"""

_FEW_PACKS = 1 << 12
"""Number of packs below which all rounds are made: they are cheap, and partners with equal sums are
rare.
"""


def exchange_segments(
    packing: Packing,
    lengths: AnyIntArray,
    *,
    capacity: int,
    seed: int,
    epoch: int,
    alikeness: float,
) -> Packing:
    """Exchange segments between packs until packs look like the data, at no cost in fill.

    ::

        capacity 8          8 · 4 4 · 2 2 2 2         best fit decreasing: similar lengths together
        each offers         8   4     2 2             some of its segments, at random
        equal sums swap         └──┬──┘
                            8 · 4 2 2 · 4 2 2         as full as before; the 8 fills one pack in any plan

    In each round every pack offers some of its segments, offers are sorted by their sum, and
    neighbors are exchanged if neither pack grows over the capacity: nearly always because the sums
    are equal, otherwise within a pack's room. So fill and number of packs stay the same. The
    difference among packs is the alikeness of ``measure_variety``: while it is above the aim, only
    exchanges that do not raise it are made; after that, all that keep it at the aim, for new
    companions. The exchange ends when the aim is reached and everything was exchanged a few times,
    or when rounds stop helping: if many segments fill most of a pack alone, alikeness cannot reach
    1, and neither does it in packs filled with shuffled samples one after the other.

    Sources need no extra handling: given the lengths, it is random which samples share a pack.

    Pure: no I/O; the same arguments give the same packs on every platform. Packs exchange in random
    blocks of 65,536, so the cost is linear in the number of items.

    Args:
        packing: which items share a pack; no pack is over the capacity.
        lengths: ``int32[num_items]``, each at least 1.
        capacity: maximum tokens of a pack.
        seed: seed of the exchanges.
        epoch: another epoch makes other exchanges: samples get new companions in every pass over
            the data.
        alikeness: the aim; 1 is as by chance, 0 exchanges as long as packs become more equal.

    Returns:
        The same number of packs, in the same order; none over the capacity, none empty, each item
        once. Their alikeness is not above the larger of the aim and the original alikeness.

    Cost: about 50 passes over all items; memory for three times the items. Source: local search for
    bin packing swaps items between packs to improve fill (Alvim et al., 2004); here swaps keep the
    fill and improve variety.

    >>> packs = Packing(np.array([0, 1, 3, 7]), np.array([0, 1, 2, 3, 4, 5, 6]))
    >>> lengths = np.array([8, 4, 4, 2, 2, 2, 2], dtype=np.int32)
    >>> mixed = exchange_segments(packs, lengths, capacity=8, seed=0, epoch=0, alikeness=1)
    >>> [lengths[pack].tolist() for pack in mixed.as_lists()]
    [[8], [4, 2, 2], [4, 2, 2]]
    """
    num_packs = len(packing)
    if num_packs < 2:
        return packing
    stream = generator(seed=seed, epoch=epoch, purpose="mix")
    measure = _Difference.of(lengths, num_packs, capacity=capacity, alikeness=alikeness)
    num_blocks = -(-num_packs // _BLOCK_PACKS)
    order = np.arange(num_packs) if num_blocks == 1 else random_order(num_packs, stream)
    sizes = packing.sizes.copy()
    blocks: list[tuple[Int64Array, AnyIntArray]] = []
    excess_before = excess = 0
    for number in range(num_blocks):
        block_packs = order[
            number * num_packs // num_blocks : (number + 1) * num_packs // num_blocks
        ]
        packs = np.sort(block_packs).astype(np.int64, copy=False)
        block, block_excess_before, block_excess = _exchange(
            packing.take(packs), lengths, measure, stream
        )
        excess_before += block_excess_before
        excess += block_excess
        sizes[packs] = block.sizes
        blocks.append((packs, block.items))
    if excess > max(0, excess_before) and alikeness > 0:
        # Some blocks rose to their aim while another could not get down to its own: then no block
        # may rise.
        return exchange_segments(
            packing, lengths, capacity=capacity, seed=seed, epoch=epoch, alikeness=0
        )
    # Packs keep their places but not their numbers of segments: blocks are written once all sizes
    # are known.
    offsets = offsets_of(sizes)
    items = np.empty_like(packing.items)
    for packs, block_items in blocks:
        items[ranges(offsets[packs], sizes[packs])] = block_items
    return Packing(offsets, items)


@dataclass(frozen=True)
class _Difference:
    """Difference among packs, in whole numbers so that rounding is the same on all platforms.

    It is the sum over packs of load² ÷ segments, which is least if all packs have the same mean
    length, in units of 2**-bits: as fine as 62 bits allow.

    Attributes:
        mean: mean tokens of a segment.
        allowance: tokens² per pack by which the aim is above the minimum: variance of the lengths
            times alikeness.
        bits: bits of the fraction; below 0 for packs of very many tokens.
        capacity: maximum tokens of a pack.
    """

    mean: float
    allowance: float
    bits: int
    capacity: int

    @classmethod
    def of(
        cls, lengths: AnyIntArray, num_packs: int, *, capacity: int, alikeness: float
    ) -> _Difference:
        """Make the measure from all items, so that every block has the same aim."""
        items = Histogram.of(lengths)
        num_items, total = items.num_items, items.total
        pairs = zip(items.lengths.tolist(), items.counts.tolist(), strict=True)
        squares = sum(length * length * count for length, count in pairs)
        variance = (squares * num_items - total * total) / (num_items * max(1, num_items - 1))
        bits = 62 - (capacity * capacity * min(num_packs, _BLOCK_PACKS)).bit_length()
        return cls(
            total / num_items, alikeness * variance * (num_packs - 1) / num_packs, bits, capacity
        )

    def values(self, loads: Int64Array, num_segments: Int64Array) -> Int64Array:
        """Return load² ÷ segments of each pack: ``int64[num_packs]``."""
        squares = loads * loads
        values: Int64Array = (
            squares << self.bits if self.bits >= 0 else squares >> -self.bits
        ) // num_segments
        return values

    def minimum_and_aim(self, tokens: int, num_segments: int, num_packs: int) -> tuple[float, int]:
        """Return the sum if all packs had the mean length of the data, and the sum at the aimed
        alikeness.
        """
        minimum = self.mean * (2 * tokens - self.mean * num_segments) * 2.0**self.bits
        return minimum, int(minimum + self.allowance * num_packs * 2.0**self.bits)


def _exchange(
    block: Packing, lengths: AnyIntArray, measure: _Difference, stream: RandomStream
) -> tuple[Packing, int, int]:
    """Exchange among the packs of a block, round by round until the aim is reached or rounds stop
    helping.

    Args:
        block: some packs of a packing.
        lengths: ``int32[num_items]``, lengths of all items of the packing.
        measure: measure of the difference among packs.
        stream: random stream of the offers.

    Returns:
        The exchanged packs; how far their difference was above the aim before the exchange, and how
        far it is now, below 0 if it is below.
    """
    # Each pass over all segments runs some hundred times.
    swap = compiled(_swap, 2 * len(lengths), sum_calls=True) or _swap_in_numpy
    offsets, items, lengths = block.offsets, block.items, lengths[block.items]
    loads = np.add.reduceat(lengths, offsets[:-1], dtype=np.int64)
    num_packs, numbers = len(loads), np.arange(len(loads))
    minimum, aim = measure.minimum_and_aim(int(loads.sum()), len(items), num_packs)
    first_value = last_value = int(measure.values(loads, np.diff(offsets)).sum())
    for number in range(1, _MAX_ROUNDS + 1):
        words = stream.words(num_packs)
        num_segments = np.diff(offsets)
        # Bits of each word: 16 break ties, 24 give the begin of the offer, 24 its number of
        # segments.
        first = (words >> np.uint64(16) & np.uint64(0xFFFFFF)).astype(np.int64) % num_segments
        count = 1 + (words >> np.uint64(40)).astype(np.int64) % np.maximum(num_segments - 1, 1)
        sums = _sum_offers(offsets, lengths, first, count)
        # Neighbors in the order of sums are partners; all keys differ, so any sort gives the same
        # order.
        ties = (words & np.uint64(0xFFFF)).astype(np.int64)
        order = np.sort(sums << 32 | ties << 16 | numbers) & 0xFFFF
        high = order[number % 2 + 1 :: 2]
        low = order[number % 2 :: 2][: len(high)]
        growth = sums[high] - sums[low]
        moved_segments = count[high] - count[low]
        values = measure.values(loads, num_segments)
        new_values = measure.values(loads[low] + growth, num_segments[low] + moved_segments)
        new_values += measure.values(loads[high] - growth, num_segments[high] - moved_segments)
        fits = loads[low] + growth <= measure.capacity
        rise = new_values - (values[low] + values[high])
        accepted = fits & (rise <= 0)
        value = int(values.sum()) + int(rise[accepted].sum())
        if value < aim:
            # Below the aim, exchanges may raise the difference up to the aim, for new companions.
            accepted |= _within_allowance(
                aim - value, rise, fits & ~accepted, ties[low] ^ ties[high]
            )
            value = int(values.sum()) + int(rise[accepted].sum())
        low, high, growth = low[accepted], high[accepted], growth[accepted]
        partner = numbers.copy()
        partner[low], partner[high] = high, low
        loads[low] += growth
        loads[high] -= growth
        places = swap(offsets, first, count, partner)
        items, lengths = items[places], lengths[places]
        offsets = offsets_of(num_segments - count + count[partner])
        if number >= _MIN_ROUNDS and number % _ROUNDS_BETWEEN_CHECKS == 0:
            stalled = last_value - value <= _MIN_GAIN * (value - minimum)
            if value <= aim or (stalled and num_packs >= _FEW_PACKS):
                break
            last_value = value
    return Packing(offsets, items), first_value - aim, value - aim


def _within_allowance(
    allowance: int, rise: Int64Array, candidates: BoolArray, coins: Int64Array
) -> BoolArray:
    """Accept random exchanges that raise the difference, in total by at most the allowance."""
    total = int(rise[candidates].sum())
    drawn = np.flatnonzero(candidates & (coins < min(1 << 16, (allowance << 16) // max(1, total))))
    accepted = np.zeros(len(rise), dtype=bool)
    accepted[drawn[np.cumsum(rise[drawn]) <= allowance]] = True
    return accepted


# In the passes below a pack is a ring: it offers ``count`` segments from ``first`` on, wrapping
# around at its end.


def _sum_offers(
    offsets: Offsets, lengths: AnyIntArray, first: Int64Array, count: Int64Array
) -> Int64Array:
    """Return the tokens that each pack offers: sums of the part up to the end of the ring, and of
    the part after it.
    """
    ends = offsets_of(lengths)
    begin = offsets[:-1]
    last = first + count
    wrapped = np.maximum(last - np.diff(offsets), 0)
    sums: Int64Array = (
        ends[begin + last - wrapped] - ends[begin + first] + ends[begin + wrapped] - ends[begin]
    )
    return sums


def _swap(
    offsets: Offsets, first: Int64Array, count: Int64Array, partner: Int64Array
) -> Int64Array:
    """Return the places of the segments that each pack keeps, then of the offer of its partner; to
    be compiled.
    """
    places = np.empty(offsets[-1], dtype=np.int64)
    target = 0
    for pack in range(len(partner)):
        for part in range(2):
            giver = pack if part == 0 else partner[pack]
            begin, end = offsets[giver], offsets[giver + 1]
            place = begin + first[giver]
            num_segments = count[giver]
            if part == 0:
                # The kept segments begin after the offered ones.
                place += num_segments
                num_segments = end - begin - num_segments
            if place >= end:
                place -= end - begin
            for _ in range(num_segments):
                places[target] = place
                target += 1
                place += 1
                if place == end:
                    place = begin
    return places


def _swap_in_numpy(
    offsets: Offsets, first: Int64Array, count: Int64Array, partner: Int64Array
) -> Int64Array:
    """Do the same in NumPy: two ranges on a ring for each pack."""
    pack_sizes = np.diff(offsets)
    giver = np.stack([np.arange(len(partner)), partner], axis=1).ravel()
    begin = np.stack([(first + count) % pack_sizes, first[partner]], axis=1).ravel()
    num_segments = np.stack([pack_sizes - count, count[partner]], axis=1).ravel()
    place = ranges(begin, num_segments)
    ring_sizes = np.repeat(pack_sizes[giver], num_segments)
    place -= np.where(place >= ring_sizes, ring_sizes, 0)
    return place + np.repeat(offsets[giver], num_segments)
