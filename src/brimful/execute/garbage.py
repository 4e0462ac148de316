"""Python's search for garbage, which takes a tenth of the time of reading rows, made rarer while a task runs."""

import contextlib
import gc
from collections.abc import Iterator

OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""Containers that are made before garbage is looked for: some megabytes of them.

Rows are trees, which go without a collector: looking for circles at every 700 objects finds none.
"""


def collect_rarely() -> None:
    """Look for garbage rarely in this process from now on, and not among what it holds already.

    For workers: what was loaded before a fork would cost time, and copies of its memory.
    """
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Look for garbage rarely within a block; a process that looks more rarely, or never, stays as it is.

    >>> before = gc.get_threshold()
    >>> with rare_collections():
    ...     gc.get_threshold()[0] >= OBJECTS_BETWEEN_COLLECTIONS or gc.get_threshold()[0] == 0
    True
    >>> gc.get_threshold() == before
    True
    """
    before = gc.get_threshold()
    if not 0 < before[0] < OBJECTS_BETWEEN_COLLECTIONS:
        yield
        return
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *before[1:])
    try:
        yield
    finally:
        gc.set_threshold(*before)
