"""A ``datasets.Dataset``, in memory or as a directory that ``save_to_disk`` wrote."""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from brimful.errors import SourceError, SourceNotFoundError
from brimful.hub import offline_if_unreachable
from brimful.optional import optional
from brimful.sources.rows import UniformBlockRows, block_ranges
from brimful.sources.saved_dataset import saved_files, saved_splits
from brimful.sources.splits import require_split
from brimful.sources.stamp import Stamp
from brimful.sources.table import table_fingerprint
from brimful.typing import Fingerprint

_ROWS_AT_ONCE = 1024
"""Number of rows that are checked and converted together."""


class HuggingFaceRows(UniformBlockRows):
    """Rows of a ``datasets.Dataset``."""

    def __init__(
        self, dataset: Any, title: str | None = None, *, files: Sequence[tuple[str, int]] | None = None
    ) -> None:
        """``files``: Arrow files of the rows in order, with the number of rows in each; None if unknown."""
        if files is not None and getattr(dataset, "_indices", None) is None:
            ends = list(itertools.accumulate(num_rows for _, num_rows in files))
            paths = [path for path, _ in files]
        else:
            ends, paths = None, list(dict.fromkeys(file["filename"] for file in dataset.cache_files))
        # Set before the data set: pickled attributes are restored in this order, and the data set maps the files.
        self._files = _Files([(path, Stamp.of(path)) for path in paths], ends)
        self._dataset = dataset
        self.title = title or "datasets.Dataset"

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str], *, split: str | None = None) -> HuggingFaceRows:
        """Open a directory that ``save_to_disk`` wrote.

        Raises:
            SettingsError: it holds several splits, and ``split`` is None.
            SourceNotFoundError: it has no such split.
            SourceError: a file of it is damaged.
        """
        name = os.fspath(path)
        datasets = _library(f"reading {name}")
        splits = saved_splits(name)
        if splits:
            name = os.path.join(name, require_split(splits, split, title=name, subject=f"{name} has"))
        # Checked before datasets maps the files: a damaged one could kill the process.
        files = saved_files(name)
        try:
            dataset = datasets.load_from_disk(name)
        except Exception as error:  # datasets raises many kinds of errors for damaged files
            raise SourceError(f"{name} cannot be opened by datasets: {str(error).split(chr(10), 1)[0]}") from error
        rows = cls(dataset, title=name, files=files)
        rows.lies_in_files = True
        return rows

    @classmethod
    def from_hub(cls, name: str, *, split: str, config: str | None = None) -> HuggingFaceRows:
        """Open a data set of the hub, or from the cache of ``datasets`` if the hub cannot be reached.

        Raises:
            SourceNotFoundError: it does not exist, or is neither reachable nor in the cache; one line, at once.
        """
        datasets = _library(f"opening {name} of the hub")
        with offline_if_unreachable() as is_reachable:
            try:
                dataset = datasets.load_dataset(name, config, split=split)
            except Exception as error:  # the hub's libraries raise errors of many kinds
                reason = "the hub cannot be reached, and it is not in the cache of datasets"
                if is_reachable:
                    reason = (str(error).strip() or repr(error)).splitlines()[0]
                raise SourceNotFoundError(
                    f"{name} (split {split}): no such file or directory here, and {reason}"
                ) from error
        return cls(dataset, title=f"{name} ({split})")

    def __len__(self) -> int:
        return len(self._dataset)

    @cached_property
    def _holds_media(self) -> bool:
        """True if a column holds images, audio or videos, which ``datasets`` would decode at each read."""
        return _is_decoded(self._dataset.features)

    def read(self, start: int, stop: int) -> Iterator[Any]:
        dataset = self._dataset.with_format(None)
        for begin, end in block_ranges(start, stop, _ROWS_AT_ONCE):
            table = self._checked(begin, end)
            if self._holds_media:
                # Media as they are stored: bytes, or a path. A decoded image would be a different one.
                yield from table.to_pylist()
                continue
            columns = dataset[begin:end]
            self._files.check(begin, end)
            names = list(columns)
            for values in zip(*columns.values(), strict=False):
                yield dict(zip(names, values, strict=False))

    def _checked(self, start: int, stop: int) -> Any:
        """Return the Arrow table of some rows after checking its values against their offsets.

        The files are mapped: reading a text that begins after the end of its file would kill the process.
        """
        import pyarrow as pa

        self._files.check(start, stop)
        try:
            table = self._dataset.with_format("arrow")[start:stop]
            table.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            detail = str(error).split("\n", 1)[0]
            raise SourceError(f"{self.title}: rows {start:,} to {stop - 1:,} are damaged: {detail}") from error
        return table

    def block_fingerprint(self, start: int, stop: int) -> Fingerprint:
        fingerprint = table_fingerprint(self._checked(start, stop))
        self._files.check(start, stop)
        return fingerprint


def _is_decoded(feature: Any) -> bool:
    """Return true for a feature that ``datasets`` decodes, or one with such a feature in it."""
    if isinstance(feature, Mapping):
        return any(map(_is_decoded, feature.values()))
    if isinstance(feature, (list, tuple)):
        return any(map(_is_decoded, feature))
    if hasattr(feature, "decode_example"):
        return True
    inner = getattr(feature, "feature", None)  # of each element of a list
    return inner is not None and _is_decoded(inner)


def _library(purpose: str) -> Any:
    with optional("datasets", "huggingface", purpose):
        import datasets
    return datasets


class _Files:
    """The files of a data set, and for each the row after its last one, if it is known."""

    def __init__(self, stamps: list[tuple[str, Stamp]], ends: list[int] | None) -> None:
        self._stamps, self._ends = stamps, ends

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Refuse, in a worker process, files that have changed since."""
        self.__dict__.update(state)
        for path, stamp in self._stamps:
            stamp.check(path)

    def check(self, start: int, stop: int) -> None:
        """Refuse rows whose files have changed."""
        first, last = 0, len(self._stamps)
        if self._ends is not None:
            first, last = bisect.bisect_right(self._ends, start), bisect.bisect_left(self._ends, stop) + 1
        for path, stamp in self._stamps[first:last]:
            stamp.check(path)
