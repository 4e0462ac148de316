"""Calls that wait for a device or a network, made at the same time."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def at_once(function: Callable[[T], object], values: Iterable[T]) -> None:
    """Call a function with each value, in a thread of its own; raise the first error once all have returned."""
    values = list(values)
    if len(values) < 2:
        for value in values:
            function(value)
        return
    with ThreadPoolExecutor(len(values)) as threads:
        for _ in threads.map(function, values):
            pass
