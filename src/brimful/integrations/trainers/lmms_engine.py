"""lmms-engine: packs planned in a window, as one of its strategies of online packing."""

from collections.abc import Iterator
from importlib import import_module
from typing import Any

import numpy as np

from brimful.stream.lookahead import Lookahead

__all__ = ["WindowPacking", "install"]


def install() -> None:
    """Let lmms-engine find ``packing_strategy: brimful``; call it before its trainer is made.

    ::

        dataset_config:
          packing: true
          packing_strategy: brimful
          packing_length: 32768
          extra_kwargs: {packing_kwargs: {size: 512}}    # samples in the window
    """
    import_module("lmms_engine.datasets.packing")._ONLINE_REGISTRY["brimful"] = WindowPacking


class WindowPacking:
    """Packs of a window of samples (``Lookahead``), with the methods of lmms-engine's
    ``OnlinePackingStrategy``.

    Args:
        packing_length: most tokens of a pack. lmms-engine keeps longer samples away.
        size: samples that wait in the window. More fill packs better; each waits with its images.
        max_wait: packs that a sample may wait for; eight windows if None.

    >>> packing = WindowPacking(10, size=4)
    >>> [pack for item, length in zip("abcdef", [7, 6, 4, 2, 5, 3]) for pack in packing.add(item, length)]
    [['b', 'c'], ['a', 'f']]
    >>> list(packing.flush())
    [['e', 'd']]
    """

    def __init__(self, packing_length: int, size: int = 256, max_wait: int | None = None) -> None:
        self.packing_length = packing_length
        self._size, self._max_wait = size, 8 * size if max_wait is None else max_wait
        self._start()

    def add(self, item: Any, length: int) -> Iterator[list[Any]]:
        """Add one sample of ``length`` tokens; yield the packs that are complete.

        Raises:
            OversizedSampleError: the sample is longer than a pack.
        """
        self._items[self._num_added] = item
        packs = self._lookahead.add(np.array([self._num_added]), np.array([length]))
        self._num_added += 1
        for sample_ids, _, _ in packs:
            yield [self._items.pop(sample_id) for sample_id in sample_ids.tolist()]

    def flush(self) -> Iterator[list[Any]]:
        """Yield the packs of the samples that wait; then another stream may begin."""
        for sample_ids, _, _ in self._lookahead.finish():
            yield [self._items.pop(sample_id) for sample_id in sample_ids.tolist()]
        self._start()

    def _start(self) -> None:
        self._lookahead = Lookahead(
            capacity=self.packing_length, size=self._size, max_wait=self._max_wait
        )
        self._items: dict[int, Any] = {}
        self._num_added = 0
