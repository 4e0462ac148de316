"""The draws of one epoch: the order within each source, and the samples or packs of all sources in
order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from brimful.base.compiling import compiled
from brimful.base.ragged import offsets_of, ranges
from brimful.base.rng import generator
from brimful.base.typing import AnyIntArray, Int64Array, Offsets
from brimful.base.wording import setting
from brimful.errors import InvalidLengthsError
from brimful.mixtures.mixture import MixStop, Mixture, MixUnit
from brimful.mixtures.take_turns import apportioned, scale_for, take_turns

_LEAST_REFILL = 1024
"""Minimum draws that are added to a queue at a time."""


@dataclass(frozen=True, eq=False)
class Elements:
    """Samples or packs to draw from, source after source.

    Dropped and rejected samples are not among them: shares refer to packed samples.

    Attributes:
        names: names of the sources.
        bounds: ``int64[num_sources + 1]``, first element of each source.
        tokens: ``int64[num_elements]``.
        uses: ``int64[num_elements]``, how often each element was consumed before.
        offsets: ``int64[num_elements + 1]``, segments of each element.
    """

    names: Sequence[str]
    bounds: Int64Array
    tokens: Int64Array
    uses: Int64Array
    offsets: Offsets

    def rows(self, elements: AnyIntArray) -> Int64Array:
        """Return the segments of these elements, in their order."""
        return ranges(self.offsets[elements], np.diff(self.offsets)[elements])

    def draws_of(self, rows: AnyIntArray) -> Int64Array:
        """Count how often each element is among the segments: ``int64[num_elements]``."""
        return np.bincount(rows, minlength=int(self.offsets[-1]))[self.offsets[:-1]]


class Queue:
    """The draws of one source in order, made when they are needed.

    Pass ``p`` has every element that was consumed at most ``p`` times, in an order of its own: a
    consumed element waits until the others have been consumed, and a pass has the same order
    wherever it is begun::

        uses 1 0 0 1      pass 0   2 1      pass 1   3 0 1 2      pass 2   1 3 2 0

    Args:
        elements: elements of all sources.
        source: number of the source.
        mixture: the request; with ``replacement``, each draw is from the whole source.
        seed, epoch: seed and epoch of the orders; only draws with replacement use the epoch.
        allowance: maximum draws; None for no limit.

    >>> ones, offsets = np.ones(3, np.int64), np.arange(4)
    >>> elements = Elements("a", np.array([0, 3]), ones, np.array([1, 0, 1]), offsets)
    >>> queue = Queue(elements, 0, Mixture(weights={"a": 1}), seed=0, epoch=0, allowance=4)
    >>> queue.grow(4)
    >>> queue.elements[:1].tolist(), sorted(queue.elements[1:].tolist())
    ([1], [0, 1, 2])
    """

    def __init__(
        self,
        elements: Elements,
        source: int,
        mixture: Mixture,
        *,
        seed: int,
        epoch: int,
        allowance: int | None,
    ) -> None:
        self._first, end = elements.bounds[source : source + 2].tolist()
        self._uses = elements.uses[self._first : end]
        self._purpose = f"mixture {elements.names[source]}"
        self._seed = seed
        self._replacement = mixture.replacement
        self._pass = int(self._uses.min()) if len(self._uses) else 0
        self._stream = generator(
            seed=seed, epoch=epoch, purpose=f"{self._purpose} with replacement"
        )
        self.allowance = allowance
        self.elements: Int64Array = np.empty(0, dtype=np.int64)

    @property
    def is_finished(self) -> bool:
        """True if the queue cannot add further draws."""
        return self.allowance is not None and len(self.elements) >= self.allowance

    def grow(self, count: int) -> None:
        """Add at least ``count`` draws, within the allowance."""
        runs, num_missing = [self.elements], max(count, _LEAST_REFILL)
        if self.allowance is not None:
            num_missing = min(num_missing, self.allowance - len(self.elements))
        while num_missing > 0:
            if self._replacement:
                run = self._stream.integers(num_missing, below=len(self._uses))
            else:
                stream = generator(seed=self._seed, epoch=self._pass, purpose=self._purpose)
                order = stream.permutation(len(self._uses))
                run = order[self._uses[order] <= self._pass]
                self._pass += 1
            runs.append(self._first + run)
            num_missing -= len(run)
        self.elements = np.concatenate(runs)[: self.allowance]


@dataclass(frozen=True, eq=False)
class MixtureDraw:
    """The draws of one epoch.

    Attributes:
        sources: ``int[num_draws]``, the source of each draw.
        elements: ``int64[num_draws]``, the element of each draw, numbered over all sources.
        exhausted: names of sources that ran out at their limit before the end, in the order in
            which they did.
        is_short: true if all sources ran out before the target was reached.
    """

    sources: AnyIntArray
    elements: Int64Array
    exhausted: tuple[str, ...]
    is_short: bool


def draw(
    elements: Elements, mixture: Mixture, *, seed: int, epoch: int, num_tokens: int | None = None
) -> MixtureDraw:
    """Draw one epoch of a mixture.

    Pure: no I/O. The same elements, mixture, seed and epoch give the same draws.

    Args:
        elements: samples or packs of all sources.
        mixture: the request.
        seed, epoch: seed and epoch of the orders.
        num_tokens: end with the draw that reaches this many tokens, regardless of the mixture's own
            end; None for the mixture's own end.

    Raises:
        InvalidLengthsError: a source has nothing to draw.

    >>> ones, offsets = np.ones(8, np.int64), np.arange(9)
    >>> elements = Elements("ab", np.array([0, 4, 8]), ones, np.zeros(8, np.int64), offsets)
    >>> draw(elements, Mixture(weights={"a": 2, "b": 1}), seed=0, epoch=0).sources.tolist()
    [0, 1, 0, 0, 1, 0]
    """
    names = elements.names
    # The end of the epoch: draws that each source has to give, and draws and tokens in all; -1 for
    # no such end.
    required = np.full(len(names), -1, dtype=np.int64)
    limits = np.array([-1, -1], dtype=np.int64)
    stop = None
    if num_tokens is not None:
        limits[1] = num_tokens
    elif mixture.has_target:
        limits[:] = [
            -1 if limit is None else limit for limit in (mixture.num_samples, mixture.num_tokens)
        ]
    else:
        stop = mixture.stop
    queues = []
    for source, (name, (start, end)) in enumerate(
        zip(names, pairwise(elements.bounds.tolist()), strict=True)
    ):
        count = end - start
        if count == 0 and mixture.weights[name]:
            raise InvalidLengthsError(
                f"source {name} of the mixture has no sample that can be packed: leave it out of "
                f"{setting('mixture')}, or raise {setting('capacity')}"
            )
        allowance = mixture.allowance(name, count)
        if stop is MixStop.FIRST_EXHAUSTED:
            allowance = count if allowance is None else allowance
        elif stop is MixStop.ALL_EXHAUSTED:
            required[source] = (
                min(count, count if allowance is None else allowance)
                if mixture.weights[name]
                else 0
            )
        queues.append(Queue(elements, source, mixture, seed=seed, epoch=epoch, allowance=allowance))
    shares = np.array([mixture.shares[name] for name in names])
    sizes = elements.tokens if mixture.unit is MixUnit.TOKENS else np.ones_like(elements.tokens)
    largest_size = int(sizes.max(initial=1))
    scale = scale_for(largest_size, len(names))
    credits, num_drawn = np.zeros((2, len(names)), dtype=np.int64)
    turns: list[AnyIntArray] = []
    exhausted_names: list[str] = []
    offsets, heads, must_grow = np.zeros(len(names) + 1, dtype=np.int64), num_drawn.copy(), True
    while shares.any():
        # A source that gives out leaves the queues of the others as they are.
        if must_grow:
            num_drawn += heads - offsets[:-1]
            # Each queue doubles, so that the number of rounds is the logarithm of the number of
            # draws.
            for share, count, queue in zip(shares, num_drawn.tolist(), queues, strict=True):
                if share and len(queue.elements) == count and not queue.is_finished:
                    queue.grow(count)
            queued = [
                queue.elements[count:]
                for queue, count in zip(queues, num_drawn.tolist(), strict=True)
            ]
            offsets, flat = offsets_of([len(queue) for queue in queued]), np.concatenate(queued)
            heads, amounts = offsets[:-1].copy(), np.stack([sizes[flat], elements.tokens[flat]])
        num_left = int((offsets[1:] - heads).sum())
        dtype = np.int16 if len(names) < 2**15 else np.int32
        chunk: AnyIntArray = np.empty(num_left + 1, dtype=dtype)
        kernel = compiled(take_turns, num_left * len(names), sum_calls=True) or take_turns
        num_turns, empty_source = kernel(
            apportioned(shares, scale), credits, amounts, heads, offsets[1:].copy(), required, limits,
            chunk, largest_size == 1,
        )  # fmt: skip
        turns.append(chunk[:num_turns])
        if empty_source < 0:
            break
        must_grow = not queues[empty_source].is_finished
        if not must_grow:
            if stop is MixStop.FIRST_EXHAUSTED:
                break
            # From here on the others share by their own weights: earlier deficits are not made up.
            exhausted_names.append(names[empty_source])
            shares[empty_source] = 0
            credits[:] = 0
    num_drawn += heads - offsets[:-1]
    sources = np.concatenate(turns)
    drawn: Int64Array = np.empty(len(sources), dtype=np.int64)
    # Draws of a source keep their order in its queue.
    drawn[np.argsort(sources, kind="stable")] = np.concatenate(
        [queue.elements[:count] for queue, count in zip(queues, num_drawn.tolist(), strict=True)]
    )
    return MixtureDraw(sources, drawn, tuple(exhausted_names), is_short=bool(limits.max() > 0))
