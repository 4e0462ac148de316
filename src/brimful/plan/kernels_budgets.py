"""Filling packs under several budgets, compiled if numba is installed.

Like ``kernels``, nothing here decides anything: the NumPy form gives the same packs, number for number. Scores are
sums in a fixed order of products of float64, without fused operations, so both forms round alike.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from brimful.compiling import compiled_form
from brimful.typing import Int64Array

__all__ = ["WORTH_COMPILING", "Filler", "Float64Array", "filler"]

Float64Array: TypeAlias = npt.NDArray[np.float64]

Filler: TypeAlias = Callable[..., None]

WORTH_COMPILING = 1_000
"""Items from which loading compiled code is quicker than running NumPy."""

AT, HELD, FILLED, PACKS = range(4)
"""Places in ``state``: next item of the stream, candidates held, items packed, packs made."""


def filler(num_items: int) -> Filler:
    """The function that fills packs: the compiled one if it pays for that many items and numba is installed.

    Called with (arrays in brackets are changed):

    ``stream``: float64[num_budgets, num_items], sizes in order of the stream; ``capacities``: float64[num_budgets];
    [``pool``]: int64[candidates], places in the stream; [``pool_sizes``]: float64[num_budgets, candidates];
    [``state``]: int64[4]; [``items``]: int64[num_items]; [``ends``]: int64[num_items]; ``scale``, ``progress``,
    ``deviation``, ``worth``: float64[num_budgets]; ``binding``: a budget; ``bulk``: float64, room above which
    items are taken as they come; ``packs``: how many to make.
    """
    return (compiled_form(_fill) if num_items >= WORTH_COMPILING else None) or _fill_numpy


def _fill(
    stream: Float64Array,
    capacities: Float64Array,
    pool: Int64Array,
    pool_sizes: Float64Array,
    state: Int64Array,
    items: Int64Array,
    ends: Int64Array,
    scale: Float64Array,
    progress: Float64Array,
    deviation: Float64Array,
    worth: Float64Array,
    binding: int,
    bulk: float,
    packs: int,
) -> None:
    budgets, total = stream.shape
    most = len(pool)
    at, held, filled, made = state[0], state[1], state[2], state[3]
    score = np.empty(most, dtype=np.float64)
    pool_worth = np.zeros(most, dtype=np.float64)
    for d in range(budgets):
        for k in range(held):
            pool_worth[k] += worth[d] * pool_sizes[d, k]
    room = np.empty(budgets, dtype=np.float64)
    for _ in range(packs):
        if filled == total:
            break
        room[:] = capacities
        while at < total and held == most and room[binding] > bulk:
            fits = True
            for d in range(budgets):
                if stream[d, at] > room[d]:
                    fits = False
            if not fits:
                break
            for d in range(budgets):
                room[d] -= stream[d, at]
            items[filled] = at
            filled += 1
            at += 1
        exchange = filled
        # Picks by score, then an exchange for each pick, then what still fits.
        step = 0
        while step < 3:
            least = -np.inf
            if step == 0:
                while held < most and at < total:
                    pool[held] = at
                    pool_worth[held] = 0.0
                    for d in range(budgets):
                        pool_sizes[d, held] = stream[d, at]
                        pool_worth[held] += worth[d] * stream[d, at]
                    held += 1
                    at += 1
                score[:held] = 0.0
                ahead = 1.0 - (capacities[binding] - room[binding]) * scale[binding]
                for d in range(budgets):
                    open_share = 1.0 - (capacities[d] - room[d]) * scale[d]
                    gain = progress[d] * max(open_share, 0.0) * scale[d]
                    for k in range(held):
                        score[k] += gain * pool_sizes[d, k]
                    if d != binding:
                        own = deviation[d] * scale[d] * ahead
                        other = deviation[d] * scale[binding] * open_share
                        for k in range(held):
                            score[k] -= abs(own * pool_sizes[d, k] - other * pool_sizes[binding, k])
                values = score
            else:
                values = pool_worth
                if step == 1:
                    if exchange == filled:
                        step = 2
                        continue
                    least = 0.0
                    for d in range(budgets):
                        least += worth[d] * stream[d, items[exchange]]
                        room[d] += stream[d, items[exchange]]
            best = -1
            for k in range(held):
                if values[k] > least:
                    fits = True
                    for d in range(budgets):
                        if pool_sizes[d, k] > room[d]:
                            fits = False
                            break
                    if fits:
                        least = values[k]
                        best = k
            if step == 1:
                if best >= 0:
                    old = items[exchange]
                    items[exchange] = pool[best]
                    pool[best] = old
                    pool_worth[best] = 0.0
                    for d in range(budgets):
                        pool_sizes[d, best] = stream[d, old]
                        pool_worth[best] += worth[d] * stream[d, old]
                for d in range(budgets):
                    room[d] -= stream[d, items[exchange]]
                exchange += 1
                continue
            if best < 0:
                step += 1
                continue
            items[filled] = pool[best]
            filled += 1
            held -= 1
            for d in range(budgets):
                room[d] -= pool_sizes[d, best]
                pool_sizes[d, best] = pool_sizes[d, held]
            pool[best] = pool[held]
            pool_worth[best] = pool_worth[held]
        ends[made] = filled
        made += 1
    state[0], state[1], state[2], state[3] = at, held, filled, made


def _fill_numpy(
    stream: Float64Array,
    capacities: Float64Array,
    pool: Int64Array,
    pool_sizes: Float64Array,
    state: Int64Array,
    items: Int64Array,
    ends: Int64Array,
    scale: Float64Array,
    progress: Float64Array,
    deviation: Float64Array,
    worth: Float64Array,
    binding: int,
    bulk: float,
    packs: int,
) -> None:
    budgets, total = stream.shape
    most = len(pool)
    at, held, filled, made = state.tolist()

    def best_by_score(room: Float64Array) -> int:
        if not held:
            return -1
        open_share = 1.0 - (capacities - room) * scale
        gain = progress * np.maximum(open_share, 0.0) * scale
        score = gain[0] * pool_sizes[0, :held]
        too_large = pool_sizes[0, :held] > room[0]
        for d in range(budgets):
            if d:
                score += gain[d] * pool_sizes[d, :held]
                too_large |= pool_sizes[d, :held] > room[d]
            if d != binding:
                aside = (deviation[d] * scale[d] * open_share[binding]) * pool_sizes[d, :held]
                aside -= (deviation[d] * scale[binding] * open_share[d]) * pool_sizes[binding, :held]
                score -= np.abs(aside, out=aside)
        score[too_large] = -np.inf
        best = int(score.argmax())
        return -1 if too_large[best] else best

    def worth_of(sizes: Float64Array) -> Float64Array:
        value = np.zeros(sizes.shape[1:])
        for d in range(budgets):
            value = value + worth[d] * sizes[d]
        return value

    def best_by_worth(room: Float64Array, least: float) -> int:
        better = (pool_worth[:held] > least).nonzero()[0]
        for d in range(budgets):
            better = better[pool_sizes[d, better] <= room[d]]
        return int(better[pool_worth[better].argmax()]) if len(better) else -1

    pool_worth = np.zeros(most)
    pool_worth[:held] = worth_of(pool_sizes[:, :held])
    for _ in range(packs):
        if filled == total:
            break
        room = capacities.copy()
        while at < total and held == most and room[binding] > bulk and bool((stream[:, at] <= room).all()):
            room -= stream[:, at]
            items[filled] = at
            filled, at = filled + 1, at + 1
        chosen = filled
        for by_score in (True, False):  # picks by score, then what still fits
            while True:
                if by_score and held < most and at < total:
                    more = min(most - held, total - at)
                    pool[held : held + more] = np.arange(at, at + more)
                    pool_sizes[:, held : held + more] = stream[:, at : at + more]
                    pool_worth[held : held + more] = worth_of(stream[:, at : at + more])
                    held, at = held + more, at + more
                best = best_by_score(room) if by_score else best_by_worth(room, -np.inf)
                if best < 0:
                    break
                items[filled] = pool[best]
                filled, held = filled + 1, held - 1
                room -= pool_sizes[:, best]
                pool[best], pool_worth[best] = pool[held], pool_worth[held]
                pool_sizes[:, best] = pool_sizes[:, held]
            for exchange in range(chosen, filled if by_score else chosen):
                old = int(items[exchange])
                room += stream[:, old]
                its_worth = worth_of(stream[:, old])
                best = best_by_worth(room, float(its_worth))
                if best >= 0:
                    items[exchange] = pool[best]
                    pool[best], pool_worth[best] = old, its_worth
                    pool_sizes[:, best] = stream[:, old]
                room -= stream[:, int(items[exchange])]
        ends[made] = filled
        made += 1
    state[:] = at, held, filled, made
