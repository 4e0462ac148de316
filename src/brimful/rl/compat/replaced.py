"""Check before a trainer's planning function is replaced: it must not pass arguments that ours does
not know.
"""

import inspect
from collections.abc import Callable
from typing import Any

from brimful.errors import SettingsError


def check_replaceable(theirs: Callable[..., Any], ours: Callable[..., Any], remedy: str) -> None:
    """Refuse to replace a function that has more arguments than ours.

    Args:
        theirs: function of the trainer.
        ours: function with the same name.
        remedy: what to do, for the message.

    Raises:
        SettingsError: names the arguments.

    >>> check_replaceable(lambda lengths: 0, lambda lengths, budget=1: 0, "leave it out")
    """
    names = inspect.signature(ours).parameters
    new_names = [name for name in inspect.signature(theirs).parameters if name not in names]
    if new_names:
        raise SettingsError(
            f"{theirs.__module__}.{ours.__name__} takes {', '.join(new_names)}, which brimful does "
            f"not know: {remedy}"
        )
