"""Packs around seeds: an item of a chosen length first, then fillers, kept if there are enough items and tokens."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from brimful.errors import SettingsError
from brimful.plan.histogram import Histogram
from brimful.plan.phases.phase import Packs, Phase, Placed, check_share, check_whole, complaint, tokens_of, without
from brimful.plan.phases.pool import Pool
from brimful.plan.phases.seeds import Half, SeedRule

__all__ = ["Seeded"]


@dataclass(frozen=True)
class Seeded(Phase):
    """Open packs with seeds and fill them with other lengths; put back what does not become full enough.

    ::

        capacity 10, items 7 7 6 3 3 2 1 1        half(min_items=3): seeds 7 7 6, fillers 3 3 2 1 1

        shortest until 3 items    then longest that fits    kept from 9.5 tokens on
        7 1 1                     nothing                   no, 9: the 1 1 go back
        6 1 1                     6 1 1 2                   yes, 10
                                                            left 7 7 3 3

    Seeds are those of the rule, and an item of a seed length never fills a pack of the same phase. The order of the
    seed lengths is that of their potential, which is one number for each: with ``room`` = capacity - length,

        0.5 · min(most items / min_items, 1)  +  0.3 · length / capacity  +  0.2 · share of filler lengths up to room

    where *most items* is 1 + min(room // shortest filler, filler items // 2); it is 0 if there is no room. Of equal
    potential, longer first.

    Behind the seed come, as long as something fits: the shortest until there are 0.8 · min_items items; the one with
    the most items for its length until there are min_items; then the longest that fits. A pack is kept if it has
    ``min_items`` items (the seed is one) and ``min_fill`` of the capacity; there is no other limit unless ``max_items``
    sets one. A kept pattern is made as often as there are items for it and then thought out anew; a seed that fails
    is left for the next phase with all of its length. For the rules *shortest* and *longest* that is the same as one
    pack at a time, because a choice stays what it was as long as its items last.

    Attributes:
        by: which lengths are seeds.
        min_items: fewest items of a pack.
        min_fill: smallest share of the capacity that a pack must hold, from 0 to 1.
        max_items: most items of a pack; None for no limit.
        rounds: run so often, seeds chosen anew, or until a round places nothing.
        min_placed: stop after a round that placed fewer items.
        only_over: run only while more items than this are left.

    Cost: one attempt for each pattern that is kept, and one for each seed length; a pattern is made until a length runs
    out, or has less than half of its items left and too few for one more. So attempts grow with the distinct lengths
    and not with the items; one costs the lengths that it holds.
    Source: steps 2 to m - 1 of the phased recipe for multimodal data of LLaVA-OneVision-1.5, on counts.

    >>> import numpy as np
    >>> items = Histogram.of(np.array([7, 7, 6, 3, 3, 2, 1, 1]))
    >>> Seeded(Half(), min_items=3).place(items, capacity=10)
    Placed(packs=[(((6, 1), (2, 1), (1, 2)), 1)], left=Histogram({3: 2, 7: 2}), note='')
    """

    by: SeedRule = field(default_factory=Half)
    min_items: int = 1
    min_fill: float = 0.95
    max_items: int | None = None
    rounds: int = 1
    min_placed: int = 1
    only_over: int = 0

    def __post_init__(self) -> None:
        if not isinstance(self.by, SeedRule):
            raise SettingsError(f"Seeded(by=…) must be a rule such as Half() or TopN(20) and is {self.by!r}")
        check_whole(self, "min_items", "max_items", "rounds", "min_placed", least=1)
        check_whole(self, "only_over", least=0)
        check_share(self, "min_fill")
        if self.max_items is not None and self.max_items < self.min_items:
            raise complaint(self.name, "max_items", f"at least min_items={self.min_items}", self.max_items)

    @property
    def name(self) -> str:
        """That of the rule: ``half``, ``top_n``, …."""
        return self.by.name

    def changed(self) -> dict[str, Any]:
        """Settings of the rule, then of the phase."""
        own = super().changed()
        own.pop("by", None)
        return {**self.by.changed(), **own}

    def place(self, items: Histogram, *, capacity: int) -> Placed:
        """Run the rounds; see the class."""
        packs: Packs = []
        notes: list[str] = []
        left = items
        for number in range(1, self.rounds + 1):
            if left.num_items <= self.only_over:
                few = f"{left.num_items:,} items are left, and it runs only over {self.only_over:,}"
                notes.append(few if self.only_over else "nothing was left")
                break
            done = self._round(left, capacity)
            packs += done.packs
            placed = left.num_items - done.left.num_items
            left = done.left
            if done.note:
                notes.append(done.note)
            if placed < self.min_placed and number < self.rounds:
                notes.append(f"round {number} placed {placed:,} items: no further round")
                break
        return Placed(packs, left, "; ".join(notes))

    def _round(self, items: Histogram, capacity: int) -> Placed:
        chosen = self.by.choose(items.lengths, capacity=capacity)
        if not chosen.any():
            return Placed([], items, "no seeds")
        if chosen.all():
            return Placed([], items, "no fillers: all lengths are seeds")
        seeds = Histogram(items.lengths[chosen], items.counts[chosen])
        fillers = Histogram(items.lengths[~chosen], items.counts[~chosen])
        pool = Pool(fillers.lengths, fillers.counts)
        least = ceil(tokens_of(self.min_fill, capacity))
        packs: Packs = []
        for seed, count in self._by_potential(seeds, fillers, capacity):
            while count:
                held, total = self._fill(seed, pool, capacity)
                if 1 + sum(held.values()) < self.min_items or total < least:
                    break
                times = min(count, pool.times(held))
                assert times > 0, "a pack holds more items than there are"
                pool.take(held, times)
                count -= times
                packs.append((tuple(sorted([(seed, 1), *held.items()], reverse=True)), times))
        return Placed(packs, without(items, packs), "" if packs else "no seed led to min_items and min_fill")

    def _fill(self, seed: int, pool: Pool, capacity: int) -> tuple[dict[int, int], int]:
        """What goes behind a seed, and the tokens of both."""
        held: dict[int, int] = {}
        room = pool.shortest(capacity - seed, held, -(-4 * self.min_items // 5) - 1)
        most = self.min_items - 1 - sum(held.values())
        if most:
            room = pool.commonest(room, held, most)
        most = capacity if self.max_items is None else self.max_items - 1 - sum(held.values())
        room = pool.longest(room, held, most)
        return held, capacity - room

    def _by_potential(self, seeds: Histogram, fillers: Histogram, capacity: int) -> list[tuple[int, int]]:
        """Seed lengths with their counts, best first."""
        short: list[int] = fillers.lengths.tolist()
        filler_items = fillers.num_items

        def potential(length: int) -> float:
            room = capacity - length
            if room == 0:
                return 0.0
            most = 1 + min(room // short[0], filler_items // 2)
            share = bisect_right(short, room) / len(short)
            full = length / capacity
            return 0.5 * min(most / self.min_items, 1.0) + 0.3 * full + 0.2 * share

        counts = zip(seeds.lengths.tolist(), seeds.counts.tolist(), strict=True)
        return sorted(counts, key=lambda entry: (potential(entry[0]), entry[0]), reverse=True)
