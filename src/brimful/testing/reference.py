"""Slow algorithms that are plainly right, one item at a time: what the fast ones are held against.

>>> best_fit_decreasing([3, 3, 5, 6, 1, 1], 7)
[[3, 4], [2], [0, 1, 5]]
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "best_fit",
    "best_fit_decreasing",
    "concat_split",
    "first_fit",
    "first_fit_decreasing",
    "lookahead",
    "next_fit",
    "worst_fit",
]


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """In order, each into the pack with the least room that suffices; the first opened of equals."""
    return _any_fit(range(len(lengths)), lengths, capacity, _tightest)


def best_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Longest first, each into the pack with the least room that suffices; the first opened of equals."""
    return _any_fit(_longest_first(lengths), lengths, capacity, _tightest)


def first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """In order, each into the first pack with room."""
    return _any_fit(range(len(lengths)), lengths, capacity, _first)


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Longest first, each into the first pack with room."""
    return _any_fit(_longest_first(lengths), lengths, capacity, _first)


def worst_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """In order, each into the pack with the most room; the first opened of equals."""
    return _any_fit(range(len(lengths)), lengths, capacity, _loosest)


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


def concat_split(lengths: Sequence[int], capacity: int) -> list[list[tuple[int, int]]]:
    """Every token of the stream as (sample, position), ``capacity`` of them to a pack."""
    tokens = [(sample, position) for sample, length in enumerate(lengths) for position in range(length)]
    return [tokens[begin : begin + capacity] for begin in range(0, len(tokens), capacity)]


def lookahead(
    lengths: Sequence[int], capacity: int, *, size: int, max_wait: int, algorithm: str, min_fill: float
) -> list[list[int]]:
    """``brimful.plan.lookahead.Lookahead``, one sample at a time."""
    emitted: list[list[int]] = []
    window: list[tuple[int, int]] = []  # item, number of the last pack that may hold it
    for item in range(len(lengths)):
        window.append((item, len(emitted) + max_wait))
        if len(window) < size:
            continue
        packs, due = _window_packs(window, lengths, capacity, len(emitted), algorithm)
        if algorithm == "next_fit":
            going = packs[:-1] or packs
        else:
            loads = [sum(lengths[item] for item in pack) for pack in packs]
            fullest = sorted(range(len(packs)), key=lambda pack: (-loads[pack], min(packs[pack])))
            going, gone = [], 0
            for pack in fullest:
                if gone < size / 2 or loads[pack] >= min_fill * capacity or due & set(packs[pack]):
                    going.append(packs[pack])
                gone += len(packs[pack])
        emitted += sorted(going, key=min)
        window = [entry for entry in window if not any(entry[0] in pack for pack in going)]
    return emitted + sorted(_window_packs(window, lengths, capacity, len(emitted), algorithm)[0], key=min)


def _window_packs(
    window: list[tuple[int, int]], lengths: Sequence[int], capacity: int, emitted: int, algorithm: str
) -> tuple[list[list[int]], set[int]]:
    """Packs of the window, and the samples that must leave now because all of these could come before them."""
    wait = {item: deadline - emitted - rank for rank, (item, deadline) in enumerate(window)}
    order = list(wait)
    if algorithm.endswith("_decreasing"):
        most = min(len(order), 2 * sum(lengths[item] for item in order) // capacity + 1)
        order.sort(key=lambda item: (wait[item] >= most, -lengths[item], item))
    rule = {"next_fit": next_fit, "first_fit": first_fit, "best_fit": best_fit}[algorithm.removesuffix("_decreasing")]
    packs = [[order[place] for place in pack] for pack in rule([lengths[item] for item in order], capacity)]
    return packs, {item for item in wait if wait[item] < len(packs)}


_Choice = Callable[[list[int], list[int]], int]


def _first(rooms: list[int], fitting: list[int]) -> int:
    return fitting[0]


def _tightest(rooms: list[int], fitting: list[int]) -> int:
    return min(fitting, key=lambda pack: (rooms[pack], pack))


def _loosest(rooms: list[int], fitting: list[int]) -> int:
    return min(fitting, key=lambda pack: (-rooms[pack], pack))


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda item: (-lengths[item], item))


def _any_fit(order: Iterable[int], lengths: Sequence[int], capacity: int, choose: _Choice) -> list[list[int]]:
    packs: list[list[int]] = []
    rooms: list[int] = []
    for item in order:
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
