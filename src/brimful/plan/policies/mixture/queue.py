"""Order of draws within one source: pass by pass, or with replacement from the whole source."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful.rng import generator
from brimful.typing import Int64Array

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
        order = generator(seed=self._seed, epoch=self._pass, purpose=f"mixture {self.pool.name}").permutation(
            len(self.pool)
        )
        run = order[self.pool.uses[order] <= self._pass]
        self._pass += 1
        return run
