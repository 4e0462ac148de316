"""Whole packs from fractions of packs."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping

from brimful.plan.histogram import Histogram
from brimful.plan.patterns import Pattern, Patterns, of_positions, packs_of, remaining

__all__ = ["ROUNDING", "fitted", "settle"]

ROUNDING = 1e-6
"""What the solver may be off by, in packs. It decides when to stop looking, never what is claimed."""


def fitted(patterns: Iterable[Pattern], items: Histogram) -> list[Pattern]:
    """The patterns with each length replaced by the longest one not above it that items have."""
    lengths = items.lengths.tolist()
    fitted = []
    for pattern in patterns:
        positions = [bisect_right(lengths, length) - 1 for length, copies in pattern for _ in range(copies)]
        positions = [position for position in positions if position >= 0]
        if positions:
            fitted.append(of_positions(lengths, positions))
    return fitted


def settle(items: Histogram, relaxed: Mapping[Pattern, float], share: float) -> tuple[Patterns, Histogram]:
    """Packs for the whole parts of a solution, and the items that are left.

    Where whole parts are less than a ``share`` of it, so much is rounded up, the largest fractions first.
    """
    whole = {pattern: int(packs + ROUNDING) for pattern, packs in relaxed.items()}
    up = max(1, int(share * sum(relaxed.values()))) - packs_of(whole)
    if up > 0:
        part = sorted(relaxed, key=lambda pattern: (whole[pattern] - relaxed[pattern], pattern))
        for pattern in part[:up]:
            whole[pattern] += 1
    wanted = {pattern: packs for pattern, packs in whole.items() if packs}
    taken = _fill_places(items, wanted)
    if not taken:  # a pattern may ask for more items of a length than there are
        taken = _fill_places(items, {next(iter(wanted)): 1}, complete=False)
    assert taken, "rounding takes at least one pack"
    return taken, remaining(items, taken)


def _fill_places(items: Histogram, wanted: Mapping[Pattern, int], *, complete: bool = True) -> Patterns:
    """Packs of the wanted patterns with real items in their places.

    The programme lets shorter items stand in for longer ones. Places go to items of their own length first; what is
    too many of a length goes to the longest shorter items that no pattern has a place for. A pack with a place that
    stays empty is not made, if they are to be ``complete``: its items are packed with the rest.
    """
    lengths = items.lengths.tolist()
    position = {length: at for at, length in enumerate(lengths)}
    own = dict.fromkeys(range(len(lengths)), 0)
    for pattern, packs in wanted.items():
        for length, copies in pattern:
            own[position[length]] += copies * packs
    left = items.counts.tolist()
    own_left = [min(own[at], left[at]) for at in range(len(lengths))]
    free = [left[at] - own_left[at] for at in range(len(lengths))]
    below = list(range(len(lengths)))  # below[at]: where to look for the longest free length up to ``at``

    def longest_free(at: int, held: Mapping[int, int]) -> int:
        at = below[at] if free[at] == 0 else at
        while at >= 0 and free[at] <= held.get(at, 0):
            if free[at] == 0:
                below[at] = below[at - 1] if at and free[at - 1] == 0 else at - 1
                at = below[at]
            else:
                at -= 1
        return at

    made: Patterns = {}
    for pattern, packs in sorted(wanted.items(), reverse=True):
        while packs:
            from_own: dict[int, int] = {}
            from_free: dict[int, int] = {}
            empty = 0
            for length, copies in pattern:
                at = position[length]
                owned = min(copies, own_left[at])
                if owned:
                    from_own[at] = owned
                for _ in range(copies - owned):
                    stand_in = longest_free(at, from_free)
                    if stand_in < 0:
                        empty += 1
                    else:
                        from_free[stand_in] = from_free.get(stand_in, 0) + 1
            if (empty and complete) or not (from_own or from_free):
                break
            times = min(
                packs,
                *(own_left[at] // copies for at, copies in from_own.items()),
                *(free[at] // copies for at, copies in from_free.items()),
            )
            held: Counter[int] = Counter()
            for part, store in ((from_own, own_left), (from_free, free)):
                for at, copies in part.items():
                    store[at] -= copies * times
                    held[at] += copies
            content = tuple((lengths[at], held[at]) for at in sorted(held, reverse=True))
            made[content] = made.get(content, 0) + times
            packs -= times
    return made
