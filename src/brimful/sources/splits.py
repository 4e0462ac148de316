"""Splits of a data set: their names, and the errors of a data set that has several.

Packing the test set with the training set would spoil every evaluation, so a data set of several splits is opened one
split at a time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable

from brimful.errors import SettingsError, SourceNotFoundError
from brimful.messages import setting

__all__ = ["ALL_SPLITS", "no_such_split", "several_splits", "split_of_file"]

ALL_SPLITS = "all"
"""Name of every split together."""

_SPLIT = re.compile(r"(train|training|test|testing|validation|valid|val|dev|eval)(?:-\d+-of-\d+|-\d+|_\d+)?")
_SHARD = re.compile(r"([A-Za-z_]+)-\d{5}-of-\d{5}")


def split_of_file(path: str) -> str | None:
    """Return the split in a file's name: ``train-00000-of-00002.parquet``, ``test.jsonl``.

    >>> split_of_file("data/test-1.jsonl"), split_of_file("notes.jsonl")
    ('test', None)
    """
    stem = os.path.basename(path).partition(".")[0]
    match = _SHARD.fullmatch(stem) or _SPLIT.fullmatch(stem)
    return match.group(1) if match else None


def is_shard(path: str) -> bool:
    """Return true for a name such as ``train-00000-of-00002.parquet``."""
    return _SHARD.match(os.path.basename(path)) is not None


def several_splits(title: str, names: Iterable[str], alternative: str = "") -> SettingsError:
    """Return the error of a data set with several splits, of which none is named."""
    names = list(names)
    first = "train" if "train" in names else next(iter(names), "train")
    listed = ", ".join(map(str, names))
    return SettingsError(
        f"{title} holds several splits ({listed}): name one with {setting('split', first)}{alternative}"
    )


def no_such_split(split: str, names: Iterable[str], subject: str = "there is") -> SourceNotFoundError:
    """Return the error of a data set without the split of that name."""
    listed = ", ".join(map(str, names))
    return SourceNotFoundError(f"{setting('split', split)}: {subject} no such split (it has {listed})")
