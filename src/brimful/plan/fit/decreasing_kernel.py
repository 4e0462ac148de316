"""The compiled form of best fit decreasing: the same runs as in plain Python, found by a tree over
the rooms.
"""

import numpy as np

from brimful.base.typing import Int64Array

_DE_BRUIJN = np.uint64(0x03F79D71B4CB0A89)
"""A number in which each sequence of six bits occurs once (Leiserson, Prokop and Randall, 1998)."""

_SHIFT = np.uint64(58)
"""Number of bits below the first six of 64."""

_PLACE_OF_BIT = np.zeros(64, dtype=np.int64)
"""Index of the only set bit, by the first six bits of ``_DE_BRUIJN`` shifted by this index."""
_PLACE_OF_BIT[[(0x03F79D71B4CB0A89 << bit & (1 << 64) - 1) >> 58 for bit in range(64)]] = np.arange(
    64
)


def place_decreasing(
    lengths: Int64Array, counts: Int64Array, capacity: int
) -> tuple[Int64Array, int]:
    """Return the rows of ``PackRuns.of_table`` and the number of packs; to be compiled.

    Runs of packs with the same room form a linked list in order of opening. A tree of 64-bit words
    over the rooms, whose bits are set if any room below them has a run, finds the least sufficient
    room.
    """
    num_levels = 1
    while capacity >> (6 * num_levels) > 0:
        num_levels += 1
    # Bit i of a level stands for word i of the level below, on level 0 for room i; words after the
    # last are 0.
    has_run = np.zeros((num_levels, (capacity >> 6) + 2), dtype=np.uint64)
    one = np.uint64(1)
    head = np.full(capacity + 1, -1, dtype=np.int64)  # first run of each room
    # Enough rows for most data sets: a table that grows is copied, and all its memory pages are
    # new.
    num_rows_expected = 64 + 2 * len(lengths)
    runs = np.empty(
        (num_rows_expected, 4), dtype=np.int64
    )  # rows: first_pack, packs, items_before, next run of the room
    num_runs = 0
    table = np.empty((num_rows_expected, 5), dtype=np.int64)
    num_rows = 0
    num_packs = 0
    for number in range(len(lengths) - 1, -1, -1):
        length = lengths[number]
        num_left = counts[number]
        while num_left > 0:
            # Find the least room of at least ``length``: go up until a word has a bit at or after
            # it, then down.
            room = length
            level = 0
            word = np.uint64(0)
            while level < num_levels:
                word = has_run[level, room >> 6] >> np.uint64(room & 63)
                if word != 0:
                    break
                room = (room >> 6) + 1
                level += 1
            # Take the run that was opened first, or open packs for all remaining items.
            if level == num_levels:
                room = capacity
                copies = capacity // length
                first_pack, packs, items_before = num_packs, (num_left + copies - 1) // copies, 0
                num_packs += packs
            else:
                room += _PLACE_OF_BIT[((word & (~word + one)) * _DE_BRUIJN) >> _SHIFT]
                while level > 0:
                    level -= 1
                    word = has_run[level, room]
                    room = (room << 6) + _PLACE_OF_BIT[
                        ((word & (~word + one)) * _DE_BRUIJN) >> _SHIFT
                    ]
                run = head[room]
                first_pack, packs, items_before = runs[run, 0], runs[run, 1], runs[run, 2]
                head[room] = runs[run, 3]
                if head[room] < 0:
                    place = room
                    for upper in range(num_levels):
                        has_run[upper, place >> 6] &= ~(one << np.uint64(place & 63))
                        place >>= 6
                        if has_run[upper, place] != 0:
                            break
            if num_rows + 2 > len(table):
                table = np.concatenate((table, np.empty_like(table)))
            if num_runs + 3 > len(runs):
                runs = np.concatenate((runs, np.empty_like(runs)))
            copies = room // length
            num_full = min(packs, num_left // copies)
            num_left -= num_full * copies
            num_partial = 1 if num_full < packs and num_left > 0 else 0
            for part in range(3):
                # The run is divided: packs that take all copies, one that takes the remaining
                # items, untouched packs.
                if part == 0:
                    first, count, placed_items = first_pack, num_full, copies
                elif part == 1:
                    first, count, placed_items = first_pack + num_full, num_partial, num_left
                else:
                    first = first_pack + num_full + num_partial
                    count, placed_items = packs - num_full - num_partial, np.int64(0)
                if count == 0:
                    continue
                if placed_items > 0:
                    table[num_rows, 0], table[num_rows, 1], table[num_rows, 2] = (
                        length,
                        first,
                        count,
                    )
                    table[num_rows, 3], table[num_rows, 4] = placed_items, items_before
                    num_rows += 1
                new_room = room - placed_items * length
                if new_room == 0:
                    continue
                # Insert the part among the runs of its room, in order of opening, and set the bits
                # above it.
                runs[num_runs, 0], runs[num_runs, 1], runs[num_runs, 2] = (
                    first,
                    count,
                    items_before + placed_items,
                )
                previous = -1
                following = head[new_room]
                while following >= 0 and runs[following, 0] < first:
                    previous = following
                    following = runs[following, 3]
                runs[num_runs, 3] = following
                if previous < 0:
                    head[new_room] = num_runs
                else:
                    runs[previous, 3] = num_runs
                num_runs += 1
                place = new_room
                for upper in range(num_levels):
                    word = has_run[upper, place >> 6]
                    has_run[upper, place >> 6] = word | (one << np.uint64(place & 63))
                    if word != 0:
                        break
                    place >>= 6
            if num_partial:
                num_left = np.int64(0)
    return table[:num_rows], num_packs
