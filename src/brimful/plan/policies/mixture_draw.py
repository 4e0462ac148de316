"""The draws of one epoch: the order within each source, and the samples or packs of all sources in order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np

from brimful.base.ragged import offsets_of, ranges, sums_of
from brimful.base.rng import generator
from brimful.base.typing import AnyIntArray, Int64Array, Offsets
from brimful.base.wording import setting
from brimful.errors import InvalidLengthsError
from brimful.plan.policies.mixture_request import MixStop, Mixture, MixUnit
from brimful.plan.policies.overflow import Segments
from brimful.plan.policies.take_turns import as_parts, scale_for, take_turns

_Elements = TypeVar("_Elements", bound="Elements")

_LEAST_REFILL = 1024
"""Minimum draws that are added to a queue at a time."""


@dataclass(frozen=True, eq=False)
class Pool:
    """The elements of one source that may be drawn: samples, or packs.

    Attributes:
        name: name of the source.
        sizes: ``int64[num_elements]``, size of each draw in the unit of the mixture.
        tokens: ``int64[num_elements]``.
        uses: ``int64[num_elements]``, how often each element was consumed before.
    """

    name: str
    sizes: Int64Array
    tokens: Int64Array
    uses: Int64Array

    def __len__(self) -> int:
        return len(self.sizes)


class Queue:
    """The draws of one source in order, made when they are needed.

    Pass ``p`` has every element that was consumed at most ``p`` times, in an order of its own: a consumed element waits
    until the others have been consumed, and a pass has the same order wherever it is begun::

        uses 1 0 0 1      pass 0   2 1      pass 1   3 0 1 2      pass 2   1 3 2 0

    Args:
        pool: the elements.
        seed, epoch: seed and epoch of the orders; only draws with replacement use the epoch.
        replacement: draw from the whole pool each time.
        allowance: maximum draws; None for no limit.

    >>> pool = Pool("a", np.ones(3, np.int64), np.ones(3, np.int64), np.array([1, 0, 1]))
    >>> queue = Queue(pool, seed=0, epoch=0, replacement=False, allowance=4)
    >>> queue.grow(4)
    >>> queue.elements[:1].tolist(), sorted(queue.elements[1:].tolist())
    ([1], [0, 1, 2])
    """

    def __init__(self, pool: Pool, *, seed: int, epoch: int, replacement: bool, allowance: int | None) -> None:
        self.pool = pool
        self.allowance = allowance
        self.elements: Int64Array = np.empty(0, dtype=np.int64)
        self._seed = seed
        self._replacement = replacement
        self._pass = int(pool.uses.min()) if len(pool) else 0
        self._stream = generator(seed=seed, epoch=epoch, purpose=f"mixture {pool.name} with replacement")

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
            run = self._next_run(num_missing)
            runs.append(run)
            num_missing -= len(run)
        self.elements = np.concatenate(runs)[: self.allowance]

    def _next_run(self, count: int) -> Int64Array:
        """Return the next draws: a whole pass, or ``count`` with replacement."""
        if self._replacement:
            return self._stream.integers(count, below=len(self.pool))
        stream = generator(seed=self._seed, epoch=self._pass, purpose=f"mixture {self.pool.name}")
        order = stream.permutation(len(self.pool))
        run = order[self.pool.uses[order] <= self._pass]
        self._pass += 1
        return run


@dataclass(frozen=True, eq=False)
class MixtureDraw:
    """The draws of one epoch.

    Attributes:
        sources: ``int[num_draws]``, the source of each draw.
        elements: ``int64[num_draws]``, the position of each draw in its pool.
        exhausted: names of sources that ran out at their limit before the end, in the order in which they did.
        is_short: true if all sources ran out before the target was reached.
    """

    sources: AnyIntArray
    elements: Int64Array
    exhausted: tuple[str, ...]
    is_short: bool

    def __len__(self) -> int:
        return len(self.sources)


def draw(
    pools: Sequence[Pool], mixture: Mixture, *, seed: int, epoch: int, num_tokens: int | None = None
) -> MixtureDraw:
    """Draw one epoch from the pools of a mixture.

    Pure: no I/O. The same pools, mixture, seed and epoch give the same draws.

    Args:
        pools: pools of all sources, in the order of the mixture's weights.
        mixture: the request.
        seed, epoch: seed and epoch of the orders.
        num_tokens: end with the draw that reaches this many tokens, regardless of the mixture's own end; None for the
            mixture's own end.

    Raises:
        InvalidLengthsError: a source has nothing to draw.

    >>> ones = np.ones(4, dtype=np.int64)
    >>> pools = [Pool("a", ones, ones, 0 * ones), Pool("b", ones, ones, 0 * ones)]
    >>> draw(pools, Mixture(weights={"a": 2, "b": 1}), seed=0, epoch=0).sources.tolist()
    [0, 1, 0, 0, 1, 0]
    """
    for pool in pools:
        if len(pool) == 0 and mixture.weights[pool.name]:
            raise InvalidLengthsError(
                f"source {pool.name} of the mixture has no sample that can be packed: leave it out of "
                f"{setting('mixture')}, or raise {setting('capacity')}"
            )
    allowances = [mixture.allowance(pool.name, len(pool)) for pool in pools]
    # The end of the epoch: draws that each source has to give, and draws and tokens in all; -1 for no such end.
    required = np.full(len(pools), -1, dtype=np.int64)
    limits = np.array([-1, -1], dtype=np.int64)
    ends_with_first = False
    if num_tokens is not None:
        limits[1] = num_tokens
    elif mixture.has_target:
        limits[:] = [-1 if limit is None else limit for limit in (mixture.num_samples, mixture.num_tokens)]
    elif mixture.stop is MixStop.FIRST_EXHAUSTED:
        ends_with_first = True
        allowances = [len(pool) if limit is None else limit for pool, limit in zip(pools, allowances, strict=True)]
    else:
        for number, (pool, limit) in enumerate(zip(pools, allowances, strict=True)):
            num_draws = len(pool) if limit is None else min(limit, len(pool))
            required[number] = num_draws if mixture.weights[pool.name] else 0
    queues = [
        Queue(pool, seed=seed, epoch=epoch, replacement=mixture.replacement, allowance=allowance)
        for pool, allowance in zip(pools, allowances, strict=True)
    ]
    shares = np.array([mixture.shares[pool.name] for pool in pools])
    largest_size = max(int(pool.sizes.max(initial=1)) for pool in pools)
    scale = scale_for(largest_size, len(pools))
    credits, num_drawn = np.zeros((2, len(pools)), dtype=np.int64)
    turns: list[AnyIntArray] = []
    exhausted_names: list[str] = []
    while shares.any():
        # Each queue doubles, so that the number of rounds is the logarithm of the number of draws.
        for share, count, queue in zip(shares, num_drawn.tolist(), queues, strict=True):
            if share and len(queue.elements) == count and not queue.is_finished:
                queue.grow(count)
        queued = [queue.elements[count:] for queue, count in zip(queues, num_drawn.tolist(), strict=True)]
        amounts = np.concatenate(
            [np.stack([pool.sizes, pool.tokens])[:, elements] for pool, elements in zip(pools, queued, strict=True)],
            axis=1,
        )
        offsets = offsets_of([len(elements) for elements in queued])
        heads = offsets[:-1].copy()
        chunk, empty_source = take_turns(
            as_parts(shares, scale), credits, amounts, heads, offsets[1:].copy(), required, limits,
            is_unit=largest_size == 1,
        )  # fmt: skip
        turns.append(chunk)
        num_drawn += heads - offsets[:-1]
        if empty_source < 0:
            break
        if queues[empty_source].is_finished:
            if ends_with_first:
                break
            # From here on the others share by their own weights: earlier deficits are not made up.
            exhausted_names.append(pools[empty_source].name)
            shares[empty_source] = 0
            credits[:] = 0
    sources = np.concatenate(turns)
    elements: Int64Array = np.empty(len(sources), dtype=np.int64)
    # Draws of a source keep their order in its queue.
    elements[np.argsort(sources, kind="stable")] = np.concatenate(
        [queue.elements[:count] for queue, count in zip(queues, num_drawn.tolist(), strict=True)]
    )
    return MixtureDraw(
        sources=sources,
        elements=elements,
        exhausted=tuple(exhausted_names),
        is_short=bool(limits.max() > 0),
    )


@dataclass(frozen=True, eq=False)
class Elements:
    """Samples or packs, source after source.

    Attributes:
        names: names of the sources.
        bounds: ``int64[num_sources + 1]``, first element of each source.
        tokens: ``int64[num_elements]``.
        uses: ``int64[num_elements]``, how often each element was consumed before.
    """

    names: Sequence[str]
    bounds: Int64Array
    tokens: Int64Array
    uses: Int64Array

    def draw(self, mixture: Mixture, *, seed: int, epoch: int, num_tokens: int | None = None) -> MixtureDraw:
        """Draw one epoch; see ``draw``."""
        pools = []
        for name, begin, end in zip(self.names, self.bounds[:-1], self.bounds[1:], strict=True):
            tokens = self.tokens[begin:end]
            sizes = tokens if mixture.unit is MixUnit.TOKENS else np.ones_like(tokens)
            pools.append(Pool(name, sizes, tokens, self.uses[begin:end]))
        return draw(pools, mixture, seed=seed, epoch=epoch, num_tokens=num_tokens)

    def numbers(self, draws: MixtureDraw) -> Int64Array:
        """Return the element of each draw: ``int64[num_draws]``."""
        numbers: Int64Array = self.bounds[draws.sources] + draws.elements
        return numbers

    def after(self: _Elements, draws: MixtureDraw) -> _Elements:
        """Return the elements with these draws counted as consumed."""
        return replace(self, uses=self.uses + np.bincount(self.numbers(draws), minlength=len(self.uses)))


@dataclass(frozen=True, eq=False)
class MixedSamples(Elements):
    """The samples of a mixture that can be packed, and their segments.

    Dropped and rejected samples are not among them: shares refer to packed samples.

    Attributes:
        begins: ``int64[num_sources + 1]``, first sample of each source, counting dropped and rejected samples.
        segment_offsets: ``int64[num_samples + 1]``, segments of each sample.
    """

    begins: Offsets
    segment_offsets: Offsets

    @classmethod
    def of(cls, segments: Segments, names: Sequence[str], sources: Offsets, uses: Int64Array) -> MixedSamples:
        """Find the samples among the segments.

        Args:
            segments: segments to pack, by ascending sample.
            names: names of the sources.
            sources: ``int64[num_sources + 1]``, first sample of each source.
            uses: ``int64[num_samples]``, for all samples.
        """
        segment_ids = segments.ids()
        edges = np.flatnonzero(np.r_[True, segment_ids[1:] != segment_ids[:-1]]) if len(segment_ids) else segment_ids
        offsets = np.r_[edges, len(segment_ids)].astype(np.int64)
        ids = segment_ids[edges]
        tokens = sums_of(segments.lengths, offsets)
        return cls(names, np.searchsorted(ids, sources), tokens, uses[ids], sources, offsets)

    def rows(self, samples: AnyIntArray) -> Int64Array:
        """Return the segments of these samples, in their order."""
        return ranges(self.segment_offsets[samples], np.diff(self.segment_offsets)[samples])

    def draws_of(self, rows: AnyIntArray) -> Int64Array:
        """Count how often each sample is among the segments: ``int64[num_samples]``."""
        return np.bincount(rows, minlength=int(self.segment_offsets[-1]))[self.segment_offsets[:-1]]
