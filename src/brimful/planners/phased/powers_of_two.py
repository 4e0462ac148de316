"""Full packs of lengths that are the capacity, repeatedly halved."""

from dataclasses import dataclass

from brimful.plan.counts.histogram import Histogram
from brimful.planners.patterns import PatternRun, remaining
from brimful.planners.phased.phase import Phase, Placed


@dataclass(frozen=True)
class PowersOfTwo(Phase):
    """The maximum number of exactly full packs of the lengths capacity, capacity / 2, … down to the
    first odd one.

    ::

        capacity 8     8: 1   4: 3   2: 2   1: 5        (total 29: three full packs, five tokens left)

        diversity      4 2 1 1 · 4 2 1 1 · 8        left 4 1
        greedy         8 · 4 4 · 4 2 2              left 1 1 1 1 1

    With diversity, a pack repeatedly takes one item of each length, shortest first, as long as it
    can still be filled exactly (above: 1 2 4, then 1). Without diversity, it takes the longest
    items that fit.

    A pattern is used for all packs for which items remain. Making the packs one by one would give
    the same result: as long as the items of the pattern remain, the pattern itself proves that each
    of its steps can still be completed, and a step that could not be completed before cannot be
    completed with fewer items.

    Each of the lengths divides all longer ones, so items that together hold at least a capacity
    always contain a subset that fills it exactly, and every full pack removes one capacity: the
    number of packs is total ÷ capacity, rounded down, for any choice of full packs. So dead ends do
    not exist, and no change of strategy is needed.

    Attributes:
        diversity: put as many different lengths as possible into each pack; otherwise longest
            first.
        min_length: shorter items are left out.

    Cost: at most k · log(items) patterns, of k² · log(items) steps each, for k ≤ 31 lengths.
    Source: step 1 of the phased recipe for multimodal data of LLaVA-OneVision-1.5, on counts.

    >>> import numpy as np
    >>> items = Histogram.of(np.repeat([64, 4], 5))
    >>> PowersOfTwo().place(items, capacity=64)
    Placed(packs=[(((64, 1),), 5)], left=Histogram({4: 5}), note='')
    """

    name = "powers_of_two"

    diversity: bool = True
    min_length: int = 1

    def place(self, items: Histogram, *, capacity: int) -> Placed:
        """Make all full packs; see the class."""
        all_counts = dict(zip(items.lengths.tolist(), items.counts.tolist(), strict=True))
        lengths = [
            length
            for length in halvings(capacity)
            if length >= self.min_length and length in all_counts
        ]
        counts = {length: all_counts[length] for length in lengths}  # longest first
        if not counts:
            return Placed([], items, "no item has the capacity or one of its halvings as length")
        content_of = _diverse_content if self.diversity else _greedy_content
        packs: list[PatternRun] = []
        # Invariant: counts are the items outside packs. A pattern is repeated until one of its
        # lengths runs short.
        while _can_fill(capacity, counts):
            content = content_of(capacity, counts)
            num_packs = min(counts[length] // copies for length, copies in content.items())
            for length, copies in content.items():
                counts[length] -= copies * num_packs
            packs.append((tuple(sorted(content.items(), reverse=True)), num_packs))
        return Placed(
            packs,
            remaining(items, packs),
            "" if packs else "the items of these lengths do not fill a pack",
        )


def halvings(capacity: int) -> list[int]:
    """Return the capacity, its half, … as long as they are whole numbers.

    >>> halvings(24)
    [24, 12, 6, 3]
    """
    lengths = [capacity]
    while lengths[-1] % 2 == 0:
        lengths.append(lengths[-1] // 2)
    return lengths


def _greedy_content(capacity: int, counts: dict[int, int]) -> dict[int, int]:
    """Return copies of each length, longest first, that fit into one pack; at most the counts."""
    content: dict[int, int] = {}
    room = capacity
    for length, count in counts.items():
        copies = min(count, room // length)
        if copies:
            content[length] = copies
            room -= length * copies
    return content


def _can_fill(room: int, counts: dict[int, int]) -> bool:
    """Return true if some of the items fill the room exactly.

    Taking the longest first finds them, since each length divides the longer ones.
    """
    return sum(length * copies for length, copies in _greedy_content(room, counts).items()) == room


def _diverse_content(capacity: int, counts: dict[int, int]) -> dict[int, int]:
    """Take one item of each length, shortest first, round after round, while the pack can still be
    filled exactly.

    A length that cannot be taken in one round cannot be taken later in the same pack: it leaves the
    rounds.
    """
    available = dict(counts)
    room = capacity
    round_lengths = [length for length in reversed(counts) if counts[length]]

    def fits(copies: int, lengths: list[int]) -> bool:
        """Return true if the pack can be filled exactly after this number of copies of each of the
        lengths.
        """
        room_after = room - copies * sum(lengths)
        counts_after = {
            length: count - copies * (length in lengths) for length, count in available.items()
        }
        return (
            room_after >= 0
            and min(counts_after.values()) >= 0
            and _can_fill(room_after, counts_after)
        )

    def take(copies: int, lengths: list[int]) -> None:
        nonlocal room
        room -= copies * sum(lengths)
        for length in lengths:
            available[length] -= copies

    while room:
        # The largest number of whole rounds, by bisection: if t rounds can be completed, fewer can
        # be too.
        low, high = 0, room // sum(round_lengths)
        while low < high:
            middle = (low + high + 1) // 2
            low, high = (middle, high) if fits(middle, round_lengths) else (low, middle - 1)
        take(low, round_lengths)
        # The round in which at least one length drops out.
        for length in list(round_lengths):
            if fits(1, [length]):
                take(1, [length])
            else:
                round_lengths.remove(length)
    return {
        length: counts[length] - available[length]
        for length in counts
        if counts[length] > available[length]
    }
