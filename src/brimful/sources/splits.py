"""Splits of a data set: their names, and the errors of a data set that has several.

Packing the test set with the training set would spoil every evaluation, so a data set of several splits is opened one
split at a time.
"""

import os
import re
from collections.abc import Iterable, Sequence

from brimful.errors import SettingsError, SourceNotFoundError
from brimful.messages import setting

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


def require_split(names: Iterable[str], split: str | None, *, title: str, subject: str) -> str:
    """Return the requested split, or raise an error that lists the splits.

    Args:
        names: of the existing splits.
        split: name that the user gave, or None.
        title: of the data set, for a message such as ``data holds several splits``.
        subject: begins a message such as ``data has no such split``.
    """
    names = list(names)
    if split is None:
        raise several_splits(title, names)
    if split not in names:
        text = ", ".join(map(str, names))
        raise SourceNotFoundError(f"{setting('split', split)}: {subject} no such split (it has {text})")
    return split


def several_splits(title: str, names: Sequence[str], alternative: str = "") -> SettingsError:
    """Return the error of a data set with several splits, of which none is chosen."""
    first = "train" if "train" in names else next(iter(names), "train")
    text = ", ".join(map(str, names))
    return SettingsError(f"{title} holds several splits ({text}): name one with {setting('split', first)}{alternative}")
