"""Slow algorithms that are plainly right, one item at a time: what the fast ones are held against.

>>> best_fit_decreasing([3, 3, 5, 6, 1, 1], 7)
[[3, 4], [2], [0, 1, 5]]
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

__all__ = ["best_fit_decreasing", "first_fit_decreasing", "next_fit"]


def best_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Longest first, each into the pack with the least room that suffices; the first opened of equals."""
    return _decreasing(lengths, capacity, lambda rooms, fitting: min(fitting, key=lambda pack: (rooms[pack], pack)))


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Longest first, each into the first pack with room."""
    return _decreasing(lengths, capacity, lambda rooms, fitting: fitting[0])


def next_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """In order; a new pack when the next item does not fit into the last."""
    packs: list[list[int]] = []
    room = 0
    for item, length in enumerate(lengths):
        if not packs or length > room:
            packs.append([])
            room = capacity
        packs[-1].append(item)
        room -= length
    return packs


def _decreasing(
    lengths: Sequence[int], capacity: int, choose: Callable[[list[int], list[int]], int]
) -> list[list[int]]:
    packs: list[list[int]] = []
    rooms: list[int] = []
    for item in sorted(range(len(lengths)), key=lambda item: (-lengths[item], item)):
        fitting = [pack for pack, room in enumerate(rooms) if room >= lengths[item]]
        if fitting:
            pack = choose(rooms, fitting)
        else:
            pack = len(packs)
            packs.append([])
            rooms.append(capacity)
        packs[pack].append(item)
        rooms[pack] -= lengths[item]
    return packs
