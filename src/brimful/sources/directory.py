"""The data files of a directory, the splits of a data set, and documents of one file each.

Clones of data sets from a hub hold more than data: a README, a license, descriptions in JSON, and
often several splits and configurations. Packing the test set with the training set would spoil
every evaluation, so a data set of several splits is opened one split at a time.
"""

import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from brimful.base.checks import MalformedRowError
from brimful.base.fingerprint import fingerprint_bytes, fingerprint_of
from brimful.base.typing import Fingerprint
from brimful.base.wording import setting
from brimful.errors import SettingsError, SourceNotFoundError
from brimful.sources.json_rows import text_of
from brimful.sources.rows import UniformBlockRows
from brimful.sources.stamp import Stamp, changed

ALL_SPLITS = "all"
"""Name of every split together."""

_SPLIT = re.compile(
    r"(train|training|test|testing|validation|valid|val|dev|eval)(?:-\d+-of-\d+|-\d+|_\d+)?"
)
_SHARD = re.compile(r"([A-Za-z_]+)-\d{5}-of-\d{5}")

_ABOUT = re.compile(
    r"(readme|licen[cs]e|changelog|changes|contributing|citation|notice|authors)\b.*", re.IGNORECASE
)
DESCRIPTIONS = (
    "dataset_infos.json",
    "dataset_info.json",
    "dataset_dict.json",
    "state.json",
    "config.json",
)
"""JSON files that describe a data set."""


def is_pack_store(directory: str) -> bool:
    """Return true for a directory that holds packs, from any job."""
    return os.path.isfile(os.path.join(directory, "stream.json"))


def walk_data(directory: str) -> Iterator[tuple[str, list[str]]]:
    """Yield each folder of a directory with the names of its files, folders in the order of their
    names.

    Hidden files and folders are skipped. So is what jobs wrote below the directory that they
    packed: their stores, and lists of rejected rows next to lengths. Thus the same command finds
    the same data again.
    """
    for folder, subfolders, names in os.walk(directory):
        subfolders[:] = sorted(
            name
            for name in subfolders
            if not name.startswith(".") and not is_pack_store(os.path.join(folder, name))
        )
        lists = {f"{name}.rejects.jsonl" for name in names}
        if "lengths.arrow" in names:
            lists.add("rejects.jsonl")
        yield folder, [name for name in names if not name.startswith(".") and name not in lists]


def data_files(
    directory: str,
    file_type_of: Callable[[str], str | None],
    *,
    split: str | None,
    config: str | None,
) -> list[str]:
    """Find the files of a directory that hold its data, in the order of their names; all are of one
    kind. An empty list if it has none.

    Args:
        directory: searched with all folders below it (``walk_data``).
        file_type_of: kind of a file by its name; None for a file that brimful does not read.
        split: only files of that split; ``all`` for every one.
        config: only files in a folder of that name.

    Raises:
        SourceNotFoundError: no such split or configuration.
        SettingsError: several splits, configurations or kinds, and no choice among them.
    """
    candidates = sorted(
        os.path.join(folder, name)
        for folder, names in walk_data(directory)
        for name in names
        if file_type_of(name) is not None
    )
    # If a directory holds only descriptions, they are the data: its readme is the text to pack.
    paths = [
        path
        for path, name in zip(candidates, map(os.path.basename, candidates), strict=True)
        if name not in DESCRIPTIONS
        and not (file_type_of(name) == "text" and _ABOUT.fullmatch(name))
    ] or candidates
    if not paths:
        return []
    splits = {path: split_of_file(path) for path in paths}
    paths = chosen_paths(directory, splits, split=split, config=config)
    types = {str(file_type_of(path)) for path in paths}
    if len(types) > 1:
        raise SettingsError(
            f"{directory} mixes files of several kinds ({', '.join(sorted(types))}): name some by "
            f"a pattern, such as '{directory}/*.jsonl'"
        )
    # Shards of one name in several folders are configurations; other files may share a name by
    # chance.
    folders = sorted({os.path.relpath(os.path.dirname(path), directory) for path in paths})
    has_equal_names = len({os.path.basename(path) for path in paths}) < len(paths)
    if (
        len(folders) > 1
        and has_equal_names
        and all(_SHARD.match(os.path.basename(path)) for path in paths)
    ):
        raise SettingsError(
            f"{directory} holds several configurations ({', '.join(folders)}): name one with "
            f"{setting('config', os.path.basename(folders[0]))}"
        )
    return paths


def chosen_paths(
    directory: str, splits: Mapping[str, str | None], *, split: str | None, config: str | None
) -> list[str]:
    """Return the files or folders of a directory that belong to a split and a configuration.

    Args:
        directory: that holds them.
        splits: the split after which each is named, if any.
        split: ``all`` for every one; without a choice, not all of them may be named after splits.
        config: name of a folder.

    Raises:
        SourceNotFoundError: no such split or configuration.
        SettingsError: several splits, and no choice among them.
    """
    if config is not None:
        splits = {
            path: name
            for path, name in splits.items()
            if config in os.path.relpath(path, directory).split(os.sep)
        }
        if not splits:
            raise SourceNotFoundError(
                f"{setting('config', config)}: no folder of {directory} has that name"
            )
    names = sorted({name for name in splits.values() if name is not None})
    if split is None:
        if len(names) > 1 and None not in splits.values():
            alternative = f", or take all with {setting('split', ALL_SPLITS)}"
            raise _several_splits(directory, names, alternative)
    elif split != ALL_SPLITS:
        if not names:
            reason = f"{directory} has no such split (no name in it is the name of a split)"
            raise SourceNotFoundError(f"{setting('split', split)}: {reason}")
        require_split(names, split, title=directory)
        return [path for path, name in splits.items() if name == split]
    return [*splits]


def split_of_file(path: str) -> str | None:
    """Return the split in a file's name: ``train-00000-of-00002.parquet``, ``test.jsonl``.

    >>> split_of_file("data/test-1.jsonl"), split_of_file("notes.jsonl")
    ('test', None)
    """
    stem = os.path.basename(path).partition(".")[0]
    match = _SHARD.fullmatch(stem) or _SPLIT.fullmatch(stem)
    return match.group(1) if match else None


def require_split(names: Iterable[str], split: str | None, *, title: str) -> str:
    """Return the requested split, or raise an error that lists the splits.

    Args:
        names: of the existing splits.
        split: name that the user gave, or None.
        title: of the data set, for messages.
    """
    names = list(names)
    if split is None:
        raise _several_splits(title, names)
    if split not in names:
        text = ", ".join(map(str, names))
        raise SourceNotFoundError(
            f"{setting('split', split)}: {title} has no such split (it has {text})"
        )
    return split


def _several_splits(title: str, names: Sequence[str], alternative: str = "") -> SettingsError:
    """Return the error of a data set with several splits, of which none is chosen."""
    first = "train" if "train" in names else next(iter(names), "train")
    text = ", ".join(map(str, names))
    return SettingsError(
        f"{title} holds several splits ({text}): name one with "
        f"{setting('split', first)}{alternative}"
    )


class TextFiles(UniformBlockRows):
    """One document per file, in the order of the sorted names."""

    unit = "one document a file"
    lies_in_files = True
    block_rows = 256

    def __init__(
        self, paths: Sequence[str], title: str, *, titles: Sequence[str] | None = None
    ) -> None:
        """``titles``: names of the files in messages, if ``paths`` are unpacked copies."""
        self._paths = list(paths)
        self._titles = list(titles or paths)
        self.title = title
        self._stamps: dict[str, Stamp] = {}  # of the files whose fingerprints were taken

    def __len__(self) -> int:
        return len(self._paths)

    def _bytes(self, path: str) -> bytes:
        """Return all bytes of a file; refuse a file that has changed since it was fingerprinted."""
        try:
            stamp = self._stamps.get(path) or Stamp.of(path)
            with open(path, "rb") as file:
                data = file.read()
        except FileNotFoundError as error:
            raise changed(path, "was deleted") from error
        stamp.check(path)
        return data

    def read(self, start: int, stop: int) -> Iterator[Any]:
        for path in self._paths[start:stop]:
            try:
                yield text_of(self._bytes(path))
            except MalformedRowError as error:
                yield error

    def where(self, index: int) -> str:
        return self._titles[index]

    def block_fingerprint(self, start: int, stop: int) -> Fingerprint:
        digests = []
        for path in self._paths[start:stop]:
            # The stamp is taken before the bytes are read: a change between the two is detected
            # after the read.
            self._stamps[path] = Stamp.of(path)
            digests.append(fingerprint_bytes(self._bytes(path)))
        return fingerprint_of(digests)
