"""A ``datasets.Dataset``, in memory or as a directory that ``save_to_disk`` wrote."""

from __future__ import annotations

import bisect
import itertools
import os
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from brimful.errors import SettingsError, SourceError, SourceNotFoundError, missing_extra
from brimful.fingerprint import fingerprint_bytes, fingerprint_of
from brimful.hub import offline_if_unreachable
from brimful.messages import setting
from brimful.sources.block import cut
from brimful.sources.rows import Block, Rows
from brimful.sources.saved_dataset import saved_files, saved_splits
from brimful.sources.stamp import Stamp
from brimful.typing import Fingerprint

__all__ = ["HuggingFaceRows", "table_fingerprint"]

_ROWS_AT_ONCE = 1024


class HuggingFaceRows(Rows):
    """Rows of a ``datasets.Dataset``."""

    def __init__(
        self, dataset: Any, title: str | None = None, *, files: Sequence[tuple[str, int]] | None = None
    ) -> None:
        """``files``: the Arrow files that the rows lie in, in order, and how many rows each has, where it is known."""
        if files is not None and getattr(dataset, "_indices", None) is None:
            ends = list(itertools.accumulate(rows for _, rows in files))
            paths = [path for path, _ in files]
        else:
            ends, paths = None, list(dict.fromkeys(file["filename"] for file in dataset.cache_files))
        # Before the data set: what is pickled comes back in this order, and the data set maps the files.
        self._files = _Files([(path, Stamp.of(path)) for path in paths], ends)
        self._dataset = dataset
        self.title = title or "datasets.Dataset"

    @classmethod
    def from_directory(cls, path: str | os.PathLike[str], *, split: str | None = None) -> HuggingFaceRows:
        """Open what ``save_to_disk`` wrote.

        Raises:
            SettingsError: it holds several splits, and none is named.
            SourceNotFoundError: it has no such split.
            SourceError: a file of it is damaged.
        """
        name = os.fspath(path)
        datasets = _library(f"reading {name}")
        splits = saved_splits(name)
        if splits:
            shown = ", ".join(splits)
            if split is None:
                first = "train" if "train" in splits else splits[0]
                raise SettingsError(f"{name} holds several splits ({shown}): name one with {setting('split', first)}")
            if split not in splits:
                raise SourceNotFoundError(f"{setting('split', split)}: {name} has no such split (it has {shown})")
            name = os.path.join(name, split)
        files = saved_files(name)
        try:
            loaded = datasets.load_from_disk(name)
        except Exception as error:  # whatever datasets stumbles over in what it reads
            raise SourceError(f"{name} cannot be opened by datasets: {str(error).split(chr(10), 1)[0]}") from error
        return cls(loaded, title=name, files=files)

    @classmethod
    def from_hub(cls, name: str, *, split: str, config: str | None = None) -> HuggingFaceRows:
        """Open a data set of the hub, from the cache of ``datasets`` where the hub cannot be reached.

        Raises:
            SourceNotFoundError: it is not there, or neither reachable nor in the cache; one line, at once.
        """
        datasets = _library(f"opening {name} of the hub")
        with offline_if_unreachable() as reachable:
            try:
                loaded = datasets.load_dataset(name, config, split=split)
            except Exception as error:  # the hub's libraries raise errors of many kinds
                said = (str(error).strip() or repr(error)).splitlines()[0]
                why = said if reachable else "the hub cannot be reached, and it is not in the cache of datasets"
                raise SourceNotFoundError(
                    f"{name} (split {split}): no such file or directory here, and {why}"
                ) from error
        return cls(loaded, title=f"{name} ({split})")

    def __len__(self) -> int:
        return len(self._dataset)

    def read(self, start: int, stop: int) -> Iterator[Any]:
        plain = self._dataset.with_format(None)
        for begin in range(start, stop, _ROWS_AT_ONCE):
            end = min(begin + _ROWS_AT_ONCE, stop)
            self._checked(begin, end)
            columns = plain[begin:end]
            self._files.check(begin, end)
            names = list(columns)
            for values in zip(*columns.values(), strict=False):
                yield dict(zip(names, values, strict=False))

    def get(self, index: int) -> Any:
        self._checked(index, index + 1)
        row = self._dataset.with_format(None)[index]
        self._files.check(index, index + 1)
        return row

    def _checked(self, start: int, stop: int) -> Any:
        """The Arrow table of some rows, after its values were held against their offsets.

        The files are mapped: reading a text that begins behind the end of its file would kill the process.
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

    def where(self, index: int) -> str:
        return f"{self.title}: row {index}"

    @cached_property
    def blocks(self) -> Sequence[Block]:
        found = []
        for start, stop in cut(0, len(self)):
            found.append(Block(start, stop, table_fingerprint(self._checked(start, stop))))
            self._files.check(start, stop)
        return found

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return fingerprint_of([block.fingerprint for block in self.blocks])


def _library(purpose: str) -> Any:
    try:
        import datasets
    except ImportError as error:
        raise missing_extra("datasets", "huggingface", purpose) from error
    return datasets


class _Files:
    """The files under a data set, and up to which row each goes, where that is known."""

    def __init__(self, stamps: list[tuple[str, Stamp]], ends: list[int] | None) -> None:
        self._stamps, self._ends = stamps, ends

    @classmethod
    def _reopen(cls, stamps: list[tuple[str, Stamp]], ends: list[int] | None) -> _Files:
        """In a worker process: refuse files that changed since."""
        for path, stamp in stamps:
            stamp.check(path)
        return cls(stamps, ends)

    def __reduce__(self) -> tuple[Any, ...]:
        return _Files._reopen, (self._stamps, self._ends)

    def check(self, start: int, stop: int) -> None:
        """Make sure that the files of some rows are those that were opened."""
        first, last = 0, len(self._stamps)
        if self._ends is not None:
            first, last = bisect.bisect_right(self._ends, start), bisect.bisect_left(self._ends, stop) + 1
        for path, stamp in self._stamps[first:last]:
            stamp.check(path)


def table_fingerprint(table: Any) -> Fingerprint:
    """Of the values of an Arrow table, through the IPC stream of one contiguous batch."""
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    bare = table.combine_chunks().replace_schema_metadata(None)
    with pa.ipc.new_stream(sink, bare.schema) as writer:
        writer.write_table(bare)
    return fingerprint_bytes(memoryview(sink.getvalue()))
