"""The last phase: whatever is left goes into packs."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

from brimful.plan.best_fit_decreasing import best_fit_decreasing
from brimful.plan.histogram import Histogram
from brimful.plan.patterns import patterns_of
from brimful.plan.phases.phase import Packs, Phase, Placed, check_share, check_whole, tokens_of, without
from brimful.plan.phases.pool import Pool

__all__ = ["Finish"]


@dataclass(frozen=True)
class Finish(Phase):
    """Pack everything that is left by best fit decreasing; well filled packs around a few seeds first, if wanted.

    ::

        capacity 10, items 6 3 2 2

        finish                  6 3 · 2 2
        finish(min_fill=1)      2 6 2 · 3       seeds 6 and 3 end at 9 and are put back; seed 2 takes 6, then 2

    Nothing is dropped, however little is left, and no pack is over the capacity, however poor the seeds are.

    Attributes:
        min_fill: None for best fit decreasing alone. Else some seeds come first, longest first: each is filled with the
            longest items that fit, of any length, and kept if the pack holds this share of the capacity.
        every, last: the lengths of these seeds: every n-th distinct length from the shortest, and the ``last`` longest
            of those (None for all).
        seeds_per_length: seeds of each of them. Items of one length are equal, so there is nothing to draw; ``seed`` of
            the plan says which samples they are.

    Source: step m of the phased recipe for multimodal data of LLaVA-OneVision-1.5, on counts.
    """

    min_fill: float | None = None
    every: int = 1
    last: int | None = None
    seeds_per_length: int = 10

    def __post_init__(self) -> None:
        check_share(self, "min_fill")
        check_whole(self, "every", "last", "seeds_per_length", least=1)

    @property
    def name(self) -> str:
        """``finish``."""
        return "finish"

    def place(self, items: Histogram, *, capacity: int) -> Placed:
        """Make packs of all items; see the class."""
        packs: Packs = []
        if self.min_fill is not None:
            packs = self._around_seeds(items, capacity, ceil(tokens_of(self.min_fill, capacity)))
        left = without(items, packs)
        packs += patterns_of(best_fit_decreasing(left, capacity=capacity)).items()
        return Placed(packs, without(items, packs), "" if items.num_items else "nothing was left")

    def _around_seeds(self, items: Histogram, capacity: int, least: int) -> Packs:
        packs: Packs = []
        pool = Pool(items.lengths, items.counts)
        lengths = items.lengths[:: self.every].tolist()
        for seed in reversed(lengths if self.last is None else lengths[-self.last :]):
            seeds = self.seeds_per_length
            while seeds and pool.counts[seed]:
                held = {seed: 1}
                room = pool.longest(capacity - seed, held, capacity)
                if capacity - room < least:
                    break
                times = min(seeds, pool.times(held))
                pool.take(held, times)
                seeds -= times
                packs.append((tuple(sorted(held.items(), reverse=True)), times))
        return packs
