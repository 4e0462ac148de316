"""Work that takes the cores which nobody else needs."""

import os
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Result = TypeVar("Result")

_NICENESS = 10
"""Niceness of such work: beside a thread of niceness 0 it gets a tenth of a core."""


def stepping_back(function: Callable[[], Result]) -> Result:
    """Run a function in a thread of its own, to which others are preferred; return its result.

    The function must start no threads that outlive it: they would step back as well.

    >>> stepping_back(lambda: 7)
    7
    """
    with ThreadPoolExecutor(1, initializer=_step_back) as pool:
        return pool.submit(function).result()


def _step_back() -> None:
    if sys.platform == "linux":  # elsewhere a niceness is that of a whole process
        niceness = os.getpriority(os.PRIO_PROCESS, 0)
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), max(_NICENESS, niceness))
