"""New companions: equal lengths shuffled, and segments exchanged between packs, at no cost in fill.

Decreasing algorithms place the longest first, so a pack holds lengths that are alike: long ones here, forty short ones
there. Two things loosen that and leave the number of packs as it is. ``companion_order`` shuffles equal lengths among
themselves before packs are filled. ``mix`` exchanges segments of the same total length between packs afterwards.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from brimful.plan.histogram import Histogram, decreasing_order
from brimful.plan.kernels_mix import passes, ranges
from brimful.plan.packing import Packing
from brimful.plan.shuffle import random_order, shuffle_classes
from brimful.rng import RandomStream, generator
from brimful.typing import AnyIntArray, BoolArray, Int64Array, Lengths, Offsets

__all__ = ["companion_order", "mix", "pack_order"]

_BLOCK = 1 << 16
"""Packs that exchange among themselves: they stay in the processor's cache, and their number fits 16 bits of a key."""

_LEAST_ROUNDS = 32
"""Rounds in any case: after these, few segments still have the companions they came with."""

_MOST_ROUNDS = 512
_LOOK = 16
"""Rounds between two looks at what they bring."""

_GAIN = 0.01
"""Mixing ends when ``_LOOK`` rounds bring less than this share of what packs differ by."""

_FEW = 1 << 12
"""Packs below this take all rounds: they cost nothing, and partners of equal sums are rare."""


def companion_order(lengths: Lengths, items: Histogram, *, seed: int | None, epoch: int) -> AnyIntArray:
    """Positions of the lengths, longest first; equal ones by position, or shuffled among themselves.

    Args:
        lengths: ``int[num_items]``, each at least 1.
        items: their histogram.
        seed: None keeps equal lengths in order of position.
        epoch: another shuffles otherwise.

    >>> lengths = np.array([3, 3, 5, 1, 3], dtype=np.int32)
    >>> companion_order(lengths, Histogram.of(lengths), seed=1, epoch=0).tolist()
    [2, 1, 0, 4, 3]
    """
    order = decreasing_order(lengths, items)
    if seed is None:
        return order
    return shuffle_classes(order, items.counts[::-1], generator(seed=seed, epoch=epoch, purpose="companions"))


def pack_order(num_packs: int, *, seed: int | None, epoch: int) -> AnyIntArray | None:
    """An order that has nothing to do with lengths: packs are opened longest first. None: as they were opened."""
    return None if seed is None else random_order(num_packs, generator(seed=seed, epoch=epoch, purpose="pack order"))


def mix(packing: Packing, lengths: Lengths, *, capacity: int, seed: int, epoch: int, alikeness: float) -> Packing:
    """Exchange segments between packs until packs look like the data, at no cost in fill.

    ::

        capacity 8          8 · 4 4 · 2 2 2 2         best fit decreasing: like joins like
        each offers         8   4     2 2             some of its segments, at random
        equal sums swap         └──┬──┘
                            8 · 4 2 2 · 4 2 2         as full as before; the 8 fills a pack by itself in any plan

    In each round every pack offers some of its segments, offers are sorted by their sum, and neighbours are exchanged
    if neither pack grows over the capacity: nearly always because the sums are equal, else within a pack's room.
    So packs stay as full as they were, and there are as many. What packs differ by is the alikeness of
    ``measure_variety``; while it is above the aim, only exchanges are made that do not raise it, and then any that keep
    it there, for new companions. It ends when the aim is reached and everything was exchanged some times, or when
    rounds bring nothing more: where many segments fill most of a pack alone, alikeness cannot reach 1, nor does it
    in packs filled with shuffled samples one after the other.

    Sources need no attention of their own: given their lengths, which samples meet is random.

    Pure: no I/O; the same arguments give the same packs on every platform. Packs that exchange are drawn at random,
    65,536 together, so the cost grows with the number of items and not faster.

    Args:
        packing: which items share a pack, none over the capacity.
        lengths: ``int32[num_items]``, each at least 1.
        capacity: most that a pack may hold.
        seed: of the exchanges.
        epoch: another mixes otherwise; the same data may meet new companions in every pass.
        alikeness: the aim; 1 is what chance gives, 0 exchanges as long as packs become more equal.

    Returns:
        As many packs, in the same order; none over the capacity, none empty, each item once. Their alikeness is not
        above the larger of the aim and what it was.

    Cost: about 50 passes over all items; memory for three times the items. Source: swaps between packs are how
    local search for bin packing looks for fill (Alvim et al., 2004); here they keep it, and serve variety.

    >>> packs = Packing(np.array([0, 1, 3, 7]), np.array([0, 1, 2, 3, 4, 5, 6]))
    >>> lengths = np.array([8, 4, 4, 2, 2, 2, 2], dtype=np.int32)
    >>> [lengths[pack].tolist() for pack in mix(packs, lengths, capacity=8, seed=0, epoch=0, alikeness=1).as_lists()]
    [[8], [4, 2, 2], [4, 2, 2]]
    """
    num_packs = len(packing)
    if num_packs < 2:
        return packing
    stream = generator(seed=seed, epoch=epoch, purpose="mix")
    measure = _Measure.of(lengths, num_packs, capacity=capacity, alikeness=alikeness)
    parts = -(-num_packs // _BLOCK)
    order = np.arange(num_packs) if parts == 1 else random_order(num_packs, stream)
    sizes = np.diff(packing.offsets)
    blocks: list[tuple[Int64Array, AnyIntArray]] = []
    for part in range(parts):
        packs = np.sort(order[part * num_packs // parts : (part + 1) * num_packs // parts]).astype(np.int64, copy=False)
        block = _Block.of(packing, packs, lengths, measure)
        block.mix(stream)
        sizes[packs] = np.diff(block.offsets)
        blocks.append((packs, block.items))
    offsets = _offsets_of(sizes)
    items = np.empty_like(packing.items)
    for packs, mixed in blocks:
        items[ranges(offsets[packs], sizes[packs])] = mixed
    return Packing(offsets, items)


@dataclass(frozen=True)
class _Measure:
    """What packs differ by, in whole numbers so that no platform rounds otherwise.

    It is the sum over packs of load² ÷ segments, least where all packs have the same mean length, in units of
    2**-bits: as fine as 62 bits allow.

    Attributes:
        mean: tokens of a segment.
        allowed: tokens², by which the aim is above the least, for each pack: variance of the lengths times alikeness.
        bits: of the fraction; below 0 for packs of very many tokens.
        capacity: tokens of a pack.
    """

    mean: float
    allowed: float
    bits: int
    capacity: int

    @classmethod
    def of(cls, lengths: Lengths, num_packs: int, *, capacity: int, alikeness: float) -> _Measure:
        """Of all items, so that every block has the same aim."""
        items = Histogram.of(lengths)
        number, total = items.num_items, items.total
        pairs = zip(items.lengths.tolist(), items.counts.tolist(), strict=True)
        squares = sum(length * length * count for length, count in pairs)
        variance = (squares * number - total * total) / (number * max(1, number - 1))
        bits = 62 - (capacity * capacity * min(num_packs, _BLOCK)).bit_length()
        return cls(total / number, alikeness * variance * (num_packs - 1) / num_packs, bits, capacity)

    def values(self, load: Int64Array, segments: Int64Array) -> Int64Array:
        """``int64[n]``, of packs with these loads and numbers of segments."""
        squares = load * load
        values: Int64Array = (squares << self.bits if self.bits >= 0 else squares >> -self.bits) // segments
        return values

    def least(self, tokens: int, segments: int) -> float:
        """Of packs that together hold these, could all have the mean length of the data."""
        return self.mean * (2 * tokens - self.mean * segments) * 2.0**self.bits

    def aim(self, tokens: int, segments: int, num_packs: int) -> int:
        """The same where packs are as alike as they may be."""
        return int(self.least(tokens, segments) + self.allowed * num_packs * 2.0**self.bits)


@dataclass
class _Block:
    """Packs that exchange among themselves.

    Attributes:
        offsets: ``int64[n + 1]``; changes as packs exchange.
        items: ``int[m]``, with their ``lengths``.
        load: ``int64[n]``, tokens of each pack.
    """

    offsets: Offsets
    items: AnyIntArray
    lengths: AnyIntArray
    load: Int64Array
    measure: _Measure
    offer: Callable[..., Any]
    exchange: Callable[..., Any]

    @classmethod
    def of(cls, packing: Packing, packs: Int64Array, lengths: Lengths, measure: _Measure) -> _Block:
        """Some packs of a packing."""
        begins = packing.offsets[packs]
        sizes = packing.offsets[packs + 1] - begins
        items = packing.items[ranges(begins, sizes)]
        held = lengths[items]
        offsets = _offsets_of(sizes)
        load = np.add.reduceat(held, offsets[:-1], dtype=np.int64)
        return cls(offsets, items, held, load, measure, *passes(len(packing.items)))

    def mix(self, stream: RandomStream) -> None:
        """Rounds until the aim is reached, or they bring nothing more."""
        tokens, segments, num_packs = int(self.load.sum()), len(self.items), len(self.load)
        least = self.measure.least(tokens, segments)
        aim = self.measure.aim(tokens, segments, num_packs)
        at_look = int(self.measure.values(self.load, np.diff(self.offsets)).sum())
        for number in range(1, _MOST_ROUNDS + 1):
            value = self._round(stream.words(num_packs), number % 2, aim)
            if number < _LEAST_ROUNDS or number % _LOOK:
                continue
            stalled = at_look - value <= _GAIN * (value - least)
            if value <= aim or (stalled and num_packs >= _FEW):
                return
            at_look = value

    def _round(self, words: np.ndarray[tuple[int], np.dtype[np.uint64]], skip: int, aim: int) -> int:
        """Offer, pair, exchange; what packs differ by afterwards."""
        segments = np.diff(self.offsets)
        # Of each word: 16 bits break ties, 24 say where the offer begins, 24 how many segments it has.
        first = (words >> np.uint64(16) & np.uint64(0xFFFFFF)).astype(np.int64) % segments
        count = 1 + (words >> np.uint64(40)).astype(np.int64) % np.maximum(segments - 1, 1)
        sums = np.empty(len(first), dtype=np.int64)
        self.offer(self.offsets, self.lengths, first, count, sums)
        ties = (words & np.uint64(0xFFFF)).astype(np.int64)
        keys = np.sort(sums << 32 | ties << 16 | np.arange(len(sums)))  # all different: any sort gives the same
        order = keys & 0xFFFF
        more = order[skip + 1 :: 2]
        less = order[skip::2][: len(more)]
        growth = sums[more] - sums[less]
        moved = count[more] - count[less]
        values = self.measure.values(self.load, segments)
        before = values[less] + values[more]
        after = self.measure.values(self.load[less] + growth, segments[less] + moved)
        after += self.measure.values(self.load[more] - growth, segments[more] - moved)
        fits = self.load[less] + growth <= self.measure.capacity
        gain = after - before
        accepted = fits & (gain <= 0)
        value = int(values.sum()) + int(gain[accepted].sum())
        if value < aim:
            accepted |= _within(aim - value, gain, fits & ~accepted, ties[less] ^ ties[more])
            value = int(values.sum()) + int(gain[accepted].sum())
        less, more, growth = less[accepted], more[accepted], growth[accepted]
        partner = np.arange(len(sums))
        partner[less], partner[more] = more, less
        self.load[less] += growth
        self.load[more] -= growth
        items, held = np.empty_like(self.items), np.empty_like(self.lengths)
        self.exchange(self.offsets, self.items, self.lengths, first, count, partner, items, held)
        self.items, self.lengths = items, held
        self.offsets = _offsets_of(segments - count + count[partner])
        return value


def _within(room: int, gain: Int64Array, candidates: BoolArray, coins: Int64Array) -> BoolArray:
    """Of exchanges that raise the measure, some at random that together raise it by no more than ``room``."""
    total = int(gain[candidates].sum())
    chosen = np.flatnonzero(candidates & (coins < min(1 << 16, (room << 16) // max(1, total))))
    accepted = np.zeros(len(gain), dtype=bool)
    accepted[chosen[np.cumsum(gain[chosen]) <= room]] = True
    return accepted


def _offsets_of(sizes: Int64Array) -> Offsets:
    offsets = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=offsets[1:])
    return offsets
