"""Rarer garbage collection while a task runs; by default it takes a tenth of the time of reading rows."""

import contextlib
import gc
from collections.abc import Iterator

OBJECTS_BETWEEN_COLLECTIONS = 100_000
"""Container objects created between two collections: some megabytes.

Rows are trees, which are freed without a collector: searching for cycles every 700 objects finds nothing.
"""


def collect_rarely() -> None:
    """Collect garbage rarely in this process from now on, and never among the existing objects.

    For workers: scanning objects that were loaded before a fork would cost time and copy their memory.
    """
    gc.freeze()
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)


@contextlib.contextmanager
def rare_collections() -> Iterator[None]:
    """Collect garbage rarely within a block; a process that collects more rarely, or never, is not changed.

    >>> before = gc.get_threshold()
    >>> with rare_collections():
    ...     gc.get_threshold()[0] >= OBJECTS_BETWEEN_COLLECTIONS or gc.get_threshold()[0] == 0
    True
    >>> gc.get_threshold() == before
    True
    """
    thresholds = gc.get_threshold()
    if not 0 < thresholds[0] < OBJECTS_BETWEEN_COLLECTIONS:
        yield
        return
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS, *thresholds[1:])
    try:
        yield
    finally:
        gc.set_threshold(*thresholds)
