"""The last phase: all remaining items go into packs."""

from dataclasses import dataclass
from math import ceil

from brimful.plan.counts.histogram import Histogram
from brimful.plan.counts.patterns import PatternRun, patterns_of, remaining
from brimful.plan.counts.remaining_items import RemainingItems
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.packing import tokens_of
from brimful.plan.phased.phase import Phase, Placed


@dataclass(frozen=True)
class Finish(Phase):
    """Pack all remaining items by best fit decreasing; with ``min_fill``, first make full packs from a few seeds.

    ::

        capacity 10, items 6 3 2 2

        finish                  6 3 · 2 2
        finish(min_fill=1)      2 6 2 · 3       seeds 6 and 3 end at 9 and are put back; seed 2 takes 6, then 2

    Nothing is dropped, however little remains, and no pack is over the capacity, however poor the seeds are.

    Attributes:
        min_fill: None for only best fit decreasing. Otherwise some seeds come first, longest first: each is filled with
            the longest items that fit, of any length, and kept if the pack holds this share of the capacity.
        every, last: the lengths of these seeds: every n-th distinct length from the shortest, and of these the ``last``
            longest (None for all).
        seeds_per_length: seeds of each of these lengths. Items of one length are equal, so no draw is needed; ``seed``
            of the plan determines which samples they are.

    Source: step m of the phased recipe for multimodal data of LLaVA-OneVision-1.5, on counts.
    """

    name = "finish"

    min_fill: float | None = None
    every: int = 1
    last: int | None = None
    seeds_per_length: int = 10

    def __post_init__(self) -> None:
        self.require_share("min_fill")
        self.require_whole("every", "last", "seeds_per_length", minimum=1)

    def place(self, items: Histogram, *, capacity: int) -> Placed:
        """Make packs of all items; see the class."""
        packs: list[PatternRun] = []
        if self.min_fill is not None:
            packs = self._around_seeds(items, capacity, ceil(tokens_of(self.min_fill, capacity)))
        # Seeds that were put back are among the other items.
        loose_items = remaining(items, packs)
        packs += patterns_of(best_fit_decreasing(loose_items, capacity=capacity)).items()
        return Placed(packs, remaining(items, packs), "" if items.num_items else "nothing was left")

    def _around_seeds(self, items: Histogram, capacity: int, min_load: int) -> list[PatternRun]:
        packs: list[PatternRun] = []
        fillers = RemainingItems(items)
        seed_lengths = items.lengths[:: self.every].tolist()
        for seed in reversed(seed_lengths if self.last is None else seed_lengths[-self.last :]):
            num_seeds = self.seeds_per_length
            # Equal packs at once, until an item of the content is used up; then new content for the other seeds.
            while num_seeds and fillers.counts[seed]:
                content = {seed: 1}
                room = fillers.add_longest(capacity - seed, content, capacity)
                if capacity - room < min_load:
                    break
                num_packs = min(num_seeds, fillers.num_packs(content))
                fillers.remove(content, num_packs)
                num_seeds -= num_packs
                packs.append((tuple(sorted(content.items(), reverse=True)), num_packs))
        return packs
