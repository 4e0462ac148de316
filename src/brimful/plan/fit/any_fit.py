"""First-fit, worst-fit and next-fit in the order of arrival, and cutting at the capacity."""

from collections.abc import Callable, MutableSequence, Sequence
from heapq import heappush, heapreplace
from typing import Any

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.ragged import offsets_of, positions_type
from brimful.base.typing import AnyIntArray, Lengths, Offsets
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.packing import Packing


def as_int32(lengths: AnyIntArray) -> Lengths:
    """Return ``int32[num_items]``: one type, so that each algorithm is compiled once. No capacity
    needs more.
    """
    return np.ascontiguousarray(lengths, dtype=np.int32)


def fit_in_order(loop: Callable[..., int], lengths: AnyIntArray, *options: Any) -> Packing:
    """Pack items by a loop that writes the pack of each item and returns the number of packs.

    Args:
        loop: on arrays when it is compiled, once that pays for the total of all calls so far;
            else on lists, which plain Python reads faster.
        lengths: first argument of the loop.
        options: further arguments of the loop, numbers and arrays; the last one is ``pack_of``, the
            result.
    """
    items = as_int32(lengths)
    kernel = compiled(loop, len(items), sum_calls=True)
    if kernel is not None:
        pack_of: AnyIntArray = np.empty(len(items), dtype=positions_type(len(items)))
        return packs_of_items(pack_of, kernel(items, *options, pack_of))
    packs = [0] * len(items)
    options = tuple(
        option.tolist() if isinstance(option, np.ndarray) else option for option in options
    )
    num_packs = loop(items.tolist(), *options, packs)
    return packs_of_items(np.array(packs, dtype=np.int64), num_packs)


def next_fit_upper_bound(lengths: AnyIntArray, *, capacity: int) -> int:
    """Return a number of packs that suffices for any algorithm that opens a pack only if the last
    one has no room.

    Two consecutive packs together hold more than one capacity; otherwise the second would not have
    been opened.

    >>> next_fit_upper_bound(np.array([1, 7, 1]), capacity=7)  # next fit takes all three
    3
    """
    return min(len(lengths), 2 * int(lengths.sum(dtype=np.int64)) // capacity + 1)


def packs_of_items(pack_of: AnyIntArray, num_packs: int) -> Packing:
    """Group items by their pack: packs in the order of their numbers, items of a pack in order of
    position.

    Args:
        pack_of: ``int[num_items]``, the pack of each item.
        num_packs: number of packs; no pack is empty.

    >>> packs_of_items(np.array([0, 1, 0]), 2).as_lists()
    [[0, 2], [1]]
    """
    offsets = offsets_of(np.bincount(pack_of, minlength=num_packs))
    return Packing(offsets, decreasing_order(num_packs - 1 - pack_of))


def first_fit(lengths: AnyIntArray, *, capacity: int) -> Packing:
    """Place items in their given order, each in the first opened pack that has room.

    ::

        capacity 7     3        3        5        6        1        1
        pack 0       3 ------ 3 3 ---- 3 3 ---- 3 3 ---- 3 3 1    3 3 1
        pack 1                         5 ------ 5 ------ 5 ------ 5 1       fill 19/21
        pack 2                                  6 ------ 6 ------ 6

    A binary tree over the packs leads to the first with room: each node holds the maximum room of
    the packs below it. Packs that are not open yet are empty leaves with full room, so the same
    step opens one.

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int[num_items]``, each in [1, capacity].
        capacity: maximum tokens of a pack, from 1 to 2**31 - 1.

    Returns:
        Packs in order of opening, items in their order.

    Cost: O(n·log p) for n items and p packs. Source: Johnson (1973).

    >>> first_fit(np.array([3, 3, 5, 6, 1, 1]), capacity=7).as_lists()
    [[0, 1, 4], [2, 5], [3]]
    """
    num_leaves = 1 << max(0, next_fit_upper_bound(lengths, capacity=capacity) - 1).bit_length()
    rooms = np.full(2 * num_leaves, capacity, dtype=np.int32)
    return fit_in_order(_first_fit, lengths, rooms)


def _first_fit(
    lengths: Sequence[int], rooms: MutableSequence[int], pack_of: MutableSequence[int]
) -> int:
    """Write the pack of each item and return the number of packs.

    Args:
        lengths: lengths of the items; lists in plain Python, arrays when compiled.
        rooms: a binary tree with its root at 1 and one leaf for each pack; packs that are not open
            have full room.
        pack_of: the output.
    """
    num_leaves = len(rooms) // 2
    num_packs = 0
    for item in range(len(lengths)):
        length = lengths[item]
        # Go down to the first pack with room: a node holds the maximum room of the packs below it.
        node = 1
        while node < num_leaves:
            node *= 2
            if rooms[node] < length:
                node += 1
        pack = node - num_leaves
        pack_of[item] = pack
        num_packs = max(num_packs, pack + 1)
        # Go up again and correct the nodes, until the other child of a node has as much room.
        room = rooms[node] - length
        rooms[node] = room
        while node > 1:
            room = max(rooms[node], rooms[node ^ 1])
            node //= 2
            if rooms[node] == room:
                break
            rooms[node] = room
    return num_packs


def worst_fit(lengths: AnyIntArray, *, capacity: int) -> Packing:
    """Place items in their given order, each in the emptiest pack; open a new pack only when none
    has room.

    ::

        capacity 7     3        3        5        6        1        1
        pack 0       3 ------ 3 3 ---- 3 3 ---- 3 3 ---- 3 3 ---- 3 3 1
        pack 1                         5 ------ 5 ------ 5 1 ---- 5 1       fill 19/21
        pack 2                                  6 ------ 6 ------ 6

    Of equally empty packs the one that was opened first is taken. Packs become evenly filled rather
    than full: useful for comparisons, and for packs with similar numbers of samples.

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int[num_items]``, each in [1, capacity].
        capacity: maximum tokens of a pack, from 1 to 2**31 - 1.

    Returns:
        Packs in order of opening, items in their order.

    Cost: O(n·log p) for n items and p packs. Source: Johnson (1973).

    >>> import numpy as np
    >>> worst_fit(np.array([3, 3, 5, 6, 1, 1]), capacity=7).as_lists()
    [[0, 1, 5], [2, 4], [3]]
    """
    return fit_in_order(_worst_fit, lengths, int(capacity))


def _worst_fit(lengths: Sequence[int], capacity: int, pack_of: MutableSequence[int]) -> int:
    """Write the pack of each item and return the number of packs."""
    # A heap of load · 2**32 + pack: the emptiest pack is on top, of equal ones the one opened
    # first. After all packs comes a full dummy pack, so that the heap is never empty.
    heap = [(capacity << 32) + 0xFFFFFFFF]
    for item in range(len(lengths)):
        length = lengths[item]
        key = heap[0]
        if (key >> 32) + length <= capacity:
            pack_of[item] = key & 0xFFFFFFFF
            heapreplace(heap, key + (length << 32))
        else:
            pack_of[item] = len(heap) - 1
            heappush(heap, (length << 32) + len(heap) - 1)
    return len(heap) - 1


def next_fit(lengths: AnyIntArray, *, capacity: int) -> Packing:
    """Keep one pack open; close it when the next item does not fit. The order of the items is kept.

    ::

        capacity 7     3        3        5        6        1        1
        pack 0       3 ------ 3 3
        pack 1                         5
        pack 2                                  6 ------ 6 1               fill 19/28
        pack 3                                                    1

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int[num_items]``, each in [1, capacity].
        capacity: maximum tokens of a pack, from 1 to 2**31 - 1.

    Returns:
        Packs in order of opening, items in their order.

    Cost: O(n) for n items. Source: Johnson (1973).

    >>> next_fit(np.array([3, 3, 5, 6, 1, 1]), capacity=7).as_lists()
    [[0, 1], [2], [3, 4], [5]]
    """
    pack_starts = np.empty(next_fit_upper_bound(lengths, capacity=capacity) + 1, dtype=np.int64)
    kernel = compiled(_next_fit, len(lengths), sum_calls=True)
    items = as_int32(lengths)
    if kernel is None:
        num_packs = _next_fit(items.tolist(), capacity, pack_starts)
    else:
        num_packs = kernel(items, capacity, pack_starts)
    pack_starts[num_packs] = len(items)
    return Packing(
        pack_starts[: num_packs + 1].copy(), np.arange(len(items), dtype=positions_type(len(items)))
    )


def _next_fit(lengths: Sequence[int], capacity: int, pack_starts: Offsets) -> int:
    """Write the first item of each pack and return the number of packs."""
    num_packs = 0
    load = capacity
    for item in range(len(lengths)):
        load += lengths[item]
        if load > capacity:
            load = lengths[item]
            pack_starts[num_packs] = item
            num_packs += 1
    return num_packs


def concat_split(lengths: AnyIntArray, *, capacity: int) -> Packing:
    """Pack the segments of a stream of tokens that was cut every ``capacity`` tokens
    (``policies.overflow.cut_stream``).

    ::

        capacity 4     5        2        1        6
        stream       00000    11       2        333333
        pack 0       0000
        pack 1           0    11       2
        pack 2                                  3333
        pack 3                                      33       fill 14/16

    Every pack but the last is exactly full. For documents, not for chats: a sample continues in the
    next pack without its earlier tokens. Every token is packed once, in order, however long the
    samples are.

    Pure: no I/O, no randomness.

    Args:
        lengths: ``int[num_segments]``, in the order of the stream; no segment crosses the end of a
            pack.
        capacity: tokens of a pack, from 1 to 2**31 - 1.

    Returns:
        Packs and segments in the order of the stream.

    Cost: O(n), in NumPy. Source: Brown et al. (2020) train on such sequences; Ding et al., "Fewer
    truncations improve language modeling" (2024), call it concatenate and split, and study the
    effect of the cuts.

    >>> concat_split(np.array([4, 1, 2, 1, 4, 2]), capacity=4).as_lists()
    [[0], [1, 2, 3], [4], [5]]
    """
    last_tokens = np.cumsum(lengths, dtype=np.int64) - 1
    offsets = offsets_of(np.bincount(last_tokens // capacity))
    return Packing(offsets, np.arange(len(lengths), dtype=positions_type(len(lengths))))
