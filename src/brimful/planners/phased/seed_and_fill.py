"""Packs around seeds: an item of a seed length first, then fillers; kept with enough items and
tokens.
"""

from bisect import bisect_right
from dataclasses import dataclass, field
from math import ceil
from typing import Any

from brimful.plan.counts.histogram import Histogram
from brimful.plan.packing import tokens_of
from brimful.planners.patterns import PatternRun, RemainingItems, remaining
from brimful.planners.phased.phase import Half, Phase, Placed, SeedRule


@dataclass(frozen=True)
class Seeded(Phase):
    """Packs that open with a seed and are filled with other lengths; packs that stay too empty are
    put back.

    ::

        capacity 10, items 7 7 6 3 3 2 1 1        half(min_items=3): seeds 7 7 6, fillers 3 3 2 1 1

        shortest until 3 items    then longest that fits    kept from 9.5 tokens
        7 1 1                     nothing                   no, 9: the 1 1 go back
        6 1 1                     6 1 1 2                   yes, 10
                                                            left 7 7 3 3

    The rule chooses the seeds, and an item of a seed length never fills a pack of the same phase.
    Seed lengths are used in descending order of their potential, longer ones first among equals::

        room            = capacity - length
        max_items       = 1 + min(room // shortest filler, filler items // 2)
        fitting_share   = share of the distinct filler lengths that are at most room
        potential       = 0.5 · min(max_items / min_items, 1) + 0.3 · length / capacity + 0.2 · fitting_share
                          and 0 if room = 0

    After the seed come, as long as they fit: the shortest items, up to 0.8 · min_items items in the
    pack; items of the length with the highest count / length, up to min_items; then the longest
    items that fit. A pack is kept if it has ``min_items`` items (including the seed) and
    ``min_fill`` of the capacity; ``max_items`` is the only other limit. A kept pattern is repeated
    while its items last, then the next one is computed; if a seed fails, all seeds of its length
    are left for the next phase. For the rules *shortest* and *longest*, this equals making one pack
    at a time, because a choice stays the same as long as its items last.

    Attributes:
        by: the rule that chooses the seed lengths.
        min_items: minimum items of a pack.
        min_fill: minimum share of the capacity that a pack holds, from 0 to 1.
        max_items: maximum items of a pack; None for no limit.
        rounds: maximum rounds, each with newly chosen seeds; a round that places nothing is the
            last.
        min_placed: stop after a round that placed fewer items.
        only_over: run only while more items than this are left.

    Cost: one attempt for each kept pattern, and one for each seed length; a pattern is repeated
    until a length runs out, or has less than half of its items left and too few for another pack.
    So the number of attempts depends on the distinct lengths and not on the items; the cost of an
    attempt depends on the lengths in its pack.
    Source: steps 2 to m - 1 of the phased recipe for multimodal data of LLaVA-OneVision-1.5, on
        counts.

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
    only_over: int = field(default=0, metadata={"minimum": 0})

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.max_items is not None and self.max_items < self.min_items:
            raise self.complaint("max_items", f"at least min_items={self.min_items}")

    @property
    def name(self) -> str:  # type: ignore[override]
        """The name of the rule: ``half``, ``top_n``, …."""
        return self.by.name

    def changed(self) -> dict[str, Any]:
        """Return the settings of the rule, then of the phase."""
        own_settings = super().changed()
        own_settings.pop("by", None)
        return {**self.by.changed(), **own_settings}

    def place(self, items: Histogram, *, capacity: int) -> Placed:
        """Run the rounds; see the class."""
        packs: list[PatternRun] = []
        notes: list[str] = []
        # Each round gets the items that earlier rounds left: their mean and their longest lengths
        # differ.
        for round_index in range(1, self.rounds + 1):
            num_items = items.num_items
            if num_items <= self.only_over:
                reason = f"{num_items:,} items are left, and it runs only above {self.only_over:,}"
                notes.append(reason if self.only_over else "nothing was left")
                break
            result = self._round(items, capacity)
            packs += result.packs
            items = result.left
            num_placed = num_items - items.num_items
            if result.note:
                notes.append(result.note)
            if num_placed < self.min_placed and round_index < self.rounds:
                notes.append(f"round {round_index} placed {num_placed:,} items: no further round")
                break
        return Placed(packs, items, "; ".join(notes))

    def _round(self, items: Histogram, capacity: int) -> Placed:
        is_seed = self.by.choose(items.lengths, capacity=capacity)
        if not is_seed.any():
            return Placed([], items, "no seeds")
        if is_seed.all():
            return Placed([], items, "no fillers: all lengths are seeds")
        seeds = Histogram(items.lengths[is_seed], items.counts[is_seed])
        filler_items = Histogram(items.lengths[~is_seed], items.counts[~is_seed])
        fillers = RemainingItems(filler_items)
        min_load = ceil(tokens_of(self.min_fill, capacity))
        packs: list[PatternRun] = []
        for seed, num_seeds in self._by_potential(seeds, filler_items, capacity):
            # Equal packs at once, until a filler is used up. The first failure ends this seed
            # length, because fillers only become fewer.
            while num_seeds:
                # The seed counts as one of the items; -(-4 * m // 5) is 0.8 · m, rounded up.
                content: dict[int, int] = {}
                room = fillers.add_shortest(
                    capacity - seed, content, -(-4 * self.min_items // 5) - 1
                )
                if num_missing := self.min_items - 1 - sum(content.values()):
                    room = fillers.add_commonest(room, content, num_missing)
                max_further = (self.max_items or capacity) - 1 - sum(content.values())
                room = fillers.add_longest(room, content, max_further)
                if 1 + sum(content.values()) < self.min_items or capacity - room < min_load:
                    break
                num_packs = min(num_seeds, fillers.num_packs(content))
                fillers.remove(content, num_packs)
                num_seeds -= num_packs
                packs.append(
                    (tuple(sorted([(seed, 1), *content.items()], reverse=True)), num_packs)
                )
        return Placed(
            packs, remaining(items, packs), "" if packs else "no seed led to min_items and min_fill"
        )

    def _by_potential(
        self, seeds: Histogram, fillers: Histogram, capacity: int
    ) -> list[tuple[int, int]]:
        """Return the seed lengths with their counts, highest potential first."""
        filler_lengths: list[int] = fillers.lengths.tolist()
        num_fillers = fillers.num_items

        def potential(length: int) -> float:
            room = capacity - length
            if room == 0:
                return 0.0
            max_items = 1 + min(room // filler_lengths[0], num_fillers // 2)
            fitting_share = bisect_right(filler_lengths, room) / len(filler_lengths)
            return (
                0.5 * min(max_items / self.min_items, 1.0)
                + 0.3 * (length / capacity)
                + 0.2 * fitting_share
            )

        counts = zip(seeds.lengths.tolist(), seeds.counts.tolist(), strict=True)
        return sorted(counts, key=lambda entry: (potential(entry[0]), entry[0]), reverse=True)
