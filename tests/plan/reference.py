"""Slow reference algorithms and losses, one item at a time: plainly right, for comparison with the fast ones.

>>> best_fit_decreasing([3, 3, 5, 6, 1, 1], 7)
[[3, 4], [2], [0, 1, 5]]
"""

from collections.abc import Callable, Iterable, Sequence

__all__ = [
    "best_fit",
    "best_fit_decreasing",
    "concat_split",
    "first_fit",
    "first_fit_decreasing",
    "lookahead",
    "next_fit",
    "step_loss",
    "worst_fit",
]


def best_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Pack items in order, each into the pack with the least sufficient room; the first opened of equals."""
    return _any_fit(range(len(lengths)), lengths, capacity, lambda room: room)


def best_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Pack items longest first, each into the pack with the least sufficient room; the first opened of equals."""
    return _any_fit(_longest_first(lengths), lengths, capacity, lambda room: room)


def first_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Pack items in order, each into the first pack with room."""
    return _any_fit(range(len(lengths)), lengths, capacity, lambda room: 0)


def first_fit_decreasing(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Pack items longest first, each into the first pack with room."""
    return _any_fit(_longest_first(lengths), lengths, capacity, lambda room: 0)


def worst_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Pack items in order, each into the emptiest pack with room; the first opened of equals."""
    return _any_fit(range(len(lengths)), lengths, capacity, lambda room: -room)


def next_fit(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Pack items in order; open a new pack for an item that does not fit into the last."""
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
    """Cut the stream of tokens, each as (sample, position), into packs of ``capacity`` tokens."""
    # The stream has no boundaries: a pack may begin and end inside a sample.
    tokens = [(sample, position) for sample, length in enumerate(lengths) for position in range(length)]
    return [tokens[begin : begin + capacity] for begin in range(0, len(tokens), capacity)]


def lookahead(
    lengths: Sequence[int], capacity: int, *, size: int, max_wait: int, algorithm: str, min_fill: float
) -> list[list[int]]:
    """Pack a stream as ``brimful.plan.lookahead.Lookahead`` does, one sample at a time."""
    result: list[list[int]] = []
    window: list[tuple[int, int]] = []  # item, number of the last pack that may hold it
    for item in range(len(lengths)):
        window.append((item, len(result) + max_wait))
        if len(window) < size:
            continue
        packs, due_items = _window_packs(window, lengths, capacity, len(result), algorithm)
        if algorithm == "next_fit":
            # Only the last pack can still grow.
            emission = packs[:-1] or packs
        else:
            # Fullest packs leave first: at least half of the window, all that are full enough, and all due items.
            loads = [sum(lengths[item] for item in pack) for pack in packs]
            emission, num_items = [], 0
            for pack in sorted(range(len(packs)), key=lambda pack: (-loads[pack], min(packs[pack]))):
                if num_items < size / 2 or loads[pack] >= min_fill * capacity or due_items & set(packs[pack]):
                    emission.append(packs[pack])
                num_items += len(packs[pack])
        result += sorted(emission, key=min)
        window = [entry for entry in window if not any(entry[0] in pack for pack in emission)]
    return result + sorted(_window_packs(window, lengths, capacity, len(result), algorithm)[0], key=min)


def _window_packs(
    window: list[tuple[int, int]], lengths: Sequence[int], capacity: int, num_packs: int, algorithm: str
) -> tuple[list[list[int]], set[int]]:
    """Return packs of the window, and the items that must leave now because all of these packs could precede them."""
    # Slack of an item: packs that may still precede it, less the items that are due before it.
    slack = {item: deadline - num_packs - rank for rank, (item, deadline) in enumerate(window)}
    order = list(slack)
    if algorithm.endswith("_decreasing"):
        max_packs = min(len(order), 2 * sum(lengths[item] for item in order) // capacity + 1)
        order.sort(key=lambda item: (slack[item] >= max_packs, -lengths[item], item))
    rule = {"next_fit": next_fit, "first_fit": first_fit, "best_fit": best_fit}[algorithm.removesuffix("_decreasing")]
    packs = [[order[place] for place in pack] for pack in rule([lengths[item] for item in order], capacity)]
    return packs, {item for item in slack if slack[item] < len(packs)}


def _longest_first(lengths: Sequence[int]) -> list[int]:
    return sorted(range(len(lengths)), key=lambda item: (-lengths[item], item))


def _any_fit(
    order: Iterable[int], lengths: Sequence[int], capacity: int, preference: Callable[[int], int]
) -> list[list[int]]:
    """Put each item into the pack with room whose preference is smallest, the first opened of equals; else open one."""
    packs: list[list[int]] = []
    rooms: list[int] = []
    for item in order:
        candidates = [pack for pack, room in enumerate(rooms) if room >= lengths[item]]
        if candidates:
            pack = min(candidates, key=lambda pack: (preference(rooms[pack]), pack))
        else:
            pack = len(packs)
            packs.append([])
            rooms.append(capacity)
        packs[pack].append(item)
        rooms[pack] -= lengths[item]
    return packs


def step_loss(
    losses: Sequence[Sequence[float]], masks: Sequence[Sequence[bool]], mean: str, constant: float = 1
) -> float:
    """Return the loss of a step on one device in one batch, by the formulas of verl and TRL, number by number.

    ::

        token-mean             Σ all targets ÷ their number                    verl; TRL dapo, bnpo
        seq-mean-token-mean    mean over samples of the mean of each           verl; TRL grpo
        seq-mean-token-sum     mean over samples of the sum of each            verl
        constant               Σ all targets ÷ constant                        TRL dr_grpo: samples · longest answer

    Args:
        losses: of each token of each sample.
        masks: true at targets; a sample without one is not counted.
        mean: by the name that ``LossMean`` has for it.
        constant: divisor of ``constant``.

    >>> step_loss([[1.0, 3.0], [5.0]], [[True, True], [True]], "seq-mean-token-mean")
    3.5
    """
    samples = [
        [loss for loss, is_target in zip(row, mask, strict=True) if is_target]
        for row, mask in zip(losses, masks, strict=True)
    ]
    samples = [sample for sample in samples if sample]
    total = sum(loss for sample in samples for loss in sample)
    if mean == "constant":
        return total / constant
    if mean == "token-mean":
        return total / sum(map(len, samples))
    if mean == "seq-mean-token-sum":
        return total / len(samples)
    return sum(sum(sample) / len(sample) for sample in samples) / len(samples)
