"""A directory of files: which of them are the data.

Clones of data sets from a hub hold more than data: a README, a licence, descriptions in JSON; and often several splits
and configurations. Packing the test set with the training set would spoil every evaluation, so a directory that names
its files by split is opened one split at a time.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence

from brimful.errors import SettingsError, SourceNotFoundError
from brimful.messages import setting

__all__ = ["ALL_SPLITS", "data_files"]

ALL_SPLITS = "all"
"""Name that stands for every split."""

_ABOUT = re.compile(r"(readme|licen[cs]e|changelog|changes|contributing|citation|notice|authors)\b.*", re.IGNORECASE)
_DESCRIPTIONS = ("dataset_infos.json", "dataset_info.json", "dataset_dict.json", "state.json", "config.json")
_SPLIT = re.compile(r"(train|training|test|testing|validation|valid|val|dev|eval)(?:-\d+-of-\d+|-\d+|_\d+)?")
_SHARD = re.compile(r"([A-Za-z_]+)-\d{5}-of-\d{5}")


def data_files(
    directory: str, kind_of: Callable[[str], str | None], *, split: str | None, config: str | None
) -> tuple[list[str], str]:
    """The files of a directory that hold its data, in the order of their names, and what kind they are.

    Args:
        directory: searched with all folders below it; hidden ones are passed over.
        kind_of: what a file is by its name; None for none of ours.
        split: only files of that split; ``all`` for every one.
        config: only files in a folder of that name.

    Raises:
        SourceNotFoundError: nothing there, or no such split or configuration.
        SettingsError: several splits, configurations or kinds, and none is named.
    """
    paths = sorted(
        os.path.join(folder, name)
        for folder, _, names in os.walk(directory)
        for name in names
        if not name.startswith(".") and "/." not in folder[len(directory) :] and kind_of(name) is not None
    )
    data = [path for path in paths if not _is_about(path, kind_of)]
    paths = data or paths
    if not paths:
        raise SourceNotFoundError(f"{directory}: no file in it is JSON lines, JSON, Parquet or text")
    if config is not None:
        named = [path for path in paths if config in os.path.relpath(path, directory).split(os.sep)[:-1]]
        if not named:
            raise SourceNotFoundError(f"{setting('config', config)}: no folder of {directory} has that name")
        paths = named
    paths = _of_split(directory, paths, split)
    kinds = {str(kind_of(path)) for path in paths}
    if len(kinds) > 1:
        raise SettingsError(
            f"{directory} mixes files of several kinds ({', '.join(sorted(kinds))}): name some by a "
            f"pattern, such as '{directory}/*.jsonl'"
        )
    folders = sorted({os.path.relpath(os.path.dirname(path), directory) for path in paths})
    if len(folders) > 1 and len({os.path.basename(path) for path in paths}) < len(paths) and _are_shards(paths):
        raise SettingsError(
            f"{directory} holds several configurations ({', '.join(folders)}): name one with "
            f"{setting('config', os.path.basename(folders[0]))}"
        )
    return paths, kinds.pop()


def _is_about(path: str, kind_of: Callable[[str], str | None]) -> bool:
    """Whether a file speaks of the data set rather than holding it."""
    name = os.path.basename(path)
    return (kind_of(name) == "text" and _ABOUT.fullmatch(name) is not None) or name in _DESCRIPTIONS


def _are_shards(paths: Sequence[str]) -> bool:
    return all(_SHARD.match(os.path.basename(path)) for path in paths)


def _split_of(path: str) -> str | None:
    """The split that a file's name says: ``train-00000-of-00002.parquet``, ``test.jsonl``."""
    stem = os.path.basename(path).partition(".")[0]
    shard = _SHARD.fullmatch(stem)
    if shard:
        return shard.group(1)
    match = _SPLIT.fullmatch(stem)
    return match.group(1) if match else None


def _of_split(directory: str, paths: list[str], split: str | None) -> list[str]:
    splits = {path: _split_of(path) for path in paths}
    names = sorted({name for name in splits.values() if name is not None})
    if split == ALL_SPLITS:
        return paths
    if split is not None:
        if split not in names:
            found = f"it has {', '.join(names)}" if names else "no file is named after a split"
            raise SourceNotFoundError(f"{setting('split', split)}: {directory} has no such split ({found})")
        return [path for path in paths if splits[path] == split]
    if len(names) > 1 and None not in splits.values():
        first = "train" if "train" in names else names[0]
        raise SettingsError(
            f"{directory} holds several splits ({', '.join(names)}): name one with {setting('split', first)}, or take "
            f"every one with {setting('split', ALL_SPLITS)}"
        )
    return paths
