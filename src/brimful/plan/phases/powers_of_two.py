"""Full packs of lengths that are the capacity halved again and again."""

from __future__ import annotations

from dataclasses import dataclass

from brimful.plan.histogram import Histogram
from brimful.plan.patterns import Pattern
from brimful.plan.phases.phase import Packs, Phase, Placed, check_whole, complaint, without

__all__ = ["PowersOfTwo", "halvings"]


@dataclass(frozen=True)
class PowersOfTwo(Phase):
    """Exactly full packs from the lengths capacity, capacity / 2, … up to the first odd one: as many as there can be.

    ::

        capacity 8     8: 1   4: 3   2: 2   1: 5        (total 29: three full packs, five tokens over)

        diversity      4 2 1 1 · 4 2 1 1 · 8        left 4 1
        greedy         8 · 4 4 · 4 2 2              left 1 1 1 1 1

    With diversity a pack takes one item of each length, shortest first, and again from the beginning, as long as it can
    still be filled exactly (above: 1 2 4, then 1). Without, it takes the longest that fit.

    A pattern is taken for as many packs as there are items for it. That is also what making the packs one by one
    would give: as long as the items of the pattern are there, the pattern itself proves that each of its steps can
    still be completed, and what could not be completed before cannot be with fewer items.

    Each of the lengths divides all longer ones, so items that together hold a capacity always contain a subset that
    fills it exactly, and every full pack takes one capacity away: the number of packs is total ÷ capacity, rounded
    down, whichever full packs are made. There is no dead end, and so no need to change strategy on the way out of one.

    Attributes:
        diversity: as many different lengths in each pack as possible; else longest first.
        min_length: shorter items stay out.

    Cost: k · log(items) patterns at most, of k² · log(items) steps each, for k ≤ 31 lengths.
    Source: step 1 of the phased recipe for multimodal data of LLaVA-OneVision-1.5, on counts.

    >>> import numpy as np
    >>> items = Histogram.of(np.repeat([64, 4], 5))
    >>> PowersOfTwo().place(items, capacity=64)
    Placed(packs=[(((64, 1),), 5)], left=Histogram({4: 5}), note='')
    """

    diversity: bool = True
    min_length: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.diversity, bool):
            raise complaint(self.name, "diversity", "true or false", self.diversity)
        check_whole(self, "min_length", least=1)

    @property
    def name(self) -> str:
        """``powers_of_two``."""
        return "powers_of_two"

    def place(self, items: Histogram, *, capacity: int) -> Placed:
        """Make all full packs; see the class."""
        keys = [key for key in halvings(capacity) if key >= self.min_length]
        there = dict(zip(items.lengths.tolist(), items.counts.tolist(), strict=True))
        counts = {key: there[key] for key in keys if key in there}  # longest first
        if not counts:
            return Placed([], items, "no item has the capacity or what halving it gives")
        make = _diverse if self.diversity else _greedy
        packs: Packs = []
        while _can_fill(capacity, counts):
            held = make(capacity, counts)
            times = min(counts[key] // copies for key, copies in held.items())
            for key, copies in held.items():
                counts[key] -= copies * times
            pattern: Pattern = tuple(sorted(held.items(), reverse=True))
            packs.append((pattern, times))
        return Placed(packs, without(items, packs), "" if packs else "the items of these lengths do not fill a pack")


def halvings(capacity: int) -> list[int]:
    """The capacity, its half, … as long as they are whole.

    >>> halvings(24)
    [24, 12, 6, 3]
    """
    keys = [capacity]
    while keys[-1] % 2 == 0:
        keys.append(keys[-1] // 2)
    return keys


def _can_fill(room: int, counts: dict[int, int]) -> bool:
    """Whether some of the items have exactly that total: longest first finds them where each divides the longer."""
    for key, count in counts.items():
        room -= key * min(count, room // key)
    return room == 0


def _greedy(capacity: int, counts: dict[int, int]) -> dict[int, int]:
    held: dict[int, int] = {}
    room = capacity
    for key, count in counts.items():
        copies = min(count, room // key)
        if copies:
            held[key] = copies
            room -= key * copies
    return held


def _diverse(capacity: int, counts: dict[int, int]) -> dict[int, int]:
    """Go round the keys, shortest first; a key that cannot be taken once can never be taken later in the same pack."""
    left = dict(counts)
    room = capacity
    round_of = [key for key in reversed(counts) if counts[key]]

    def fits(times: int, keys: list[int]) -> bool:
        rest = room - times * sum(keys)
        fewer = {key: count - times * (key in keys) for key, count in left.items()}
        return rest >= 0 and min(fewer.values()) >= 0 and _can_fill(rest, fewer)

    def take(times: int, keys: list[int]) -> None:
        nonlocal room
        room -= times * sum(keys)
        for key in keys:
            left[key] -= times

    while room:
        # As many whole rounds as possible at once: if t rounds can be completed, so can fewer.
        low, high = 0, room // sum(round_of)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle, round_of) else (low, middle - 1)
        take(low, round_of)
        # The round in which at least one key drops out.
        for key in list(round_of):
            if fits(1, [key]):
                take(1, [key])
            else:
                round_of.remove(key)
    return {key: counts[key] - left[key] for key in counts if counts[key] > left[key]}
