"""Settings as flags: command-line spelling of Python arguments.

>>> from brimful.messages import setting
>>> in_flags(f"choose {setting('overflow', 'drop')}, or {setting('capacity', 8192)}")
'choose --overflow drop, or --max-length 8192'
"""

import shlex
from collections.abc import Mapping
from typing import Any

from brimful.messages import NO_VALUE, as_argument, translate

FLAGS = {
    "capacity": "--max-length",
    "alignment": "--align",
    "segment": "--align",
    "total": "--align-total",
    "budgets": "--budget",
    "fields": "--field",
    "filters": "--filter",
    "directory": "-o",
    "path": "-o",
    "dp_world_size": "--world-size",
    "template_kwargs": "--template-arg",
    "source_names": "--source-name",
    "family": "--encoder",
    "config": "--subset",
    "media_storage": "--media",
    "trainings": "--training",
}
"""Flags whose names differ from their arguments in more than hyphens."""

PYTHON_ONLY = frozenset(
    {
        *("assign", "barrier", "beyond", "cache_bytes", "count", "dialect", "fit", "group", "groups_share", "layout"),
        *("arrive_seconds", "beta", "domains", "job", "mean", "place", "plan", "rank"),
        *("label_smoothing", "loss_type", "parts", "segment_multiple_of"),
        *("media_maker", "multiple_of", "normaliser", "on_bad_medium", "on_corrupt", "pad_to", "position_start"),
        *("by_source", "tail", "timeout", "uses"),
    }
)
"""Settings without a flag: messages mention them as Python arguments."""


def flag_of(name: str) -> str:
    """Return the flag of an argument.

    >>> flag_of("capacity"), flag_of("on_bad_sample")
    ('--max-length', '--on-bad-sample')
    """
    return FLAGS.get(name, f"--{name.replace('_', '-')}")


def in_flags(message: str) -> str:
    """Return a message with its settings as flags."""
    return translate(message, _as_flag)


def _as_flag(name: str, value: Any) -> str:
    # Without a flag, the argument is the only name that a reader can look up.
    if name in PYTHON_ONLY:
        return as_argument(name, value)
    flag = flag_of(name)
    if value is NO_VALUE or value is True:
        return flag
    if value is False:
        return flag.replace("--", "--no-", 1)
    # A mapping or list becomes a repeated flag.
    if isinstance(value, Mapping):
        value = [f"{key}={limit}" for key, limit in value.items()]
    values = value if isinstance(value, list) else [value]
    return " ".join(f"{flag} {shlex.quote(str(item))}" for item in values)
