"""Heartbeats that come at once, and waiting for them."""

import time
from collections.abc import Callable
from typing import TypeVar

import pytest

T = TypeVar("T")


def beat_fast(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let heartbeats come every few milliseconds, without waiting for the disk."""
    monkeypatch.setattr("brimful.shards.heartbeats._FIRST_SECONDS", 0.01)
    monkeypatch.setattr("brimful.shards.heartbeats._MIN_SECONDS", seconds)


def wait_for(condition: Callable[[], T]) -> T:
    """Return the first value of the condition that is true."""
    begin = time.monotonic()
    while not (value := condition()):
        assert time.monotonic() - begin < 30
        time.sleep(0.005)
    return value
