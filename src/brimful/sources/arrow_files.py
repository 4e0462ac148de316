"""Rows of columns on disk: Parquet files, and a ``datasets.Dataset`` as a directory that
``save_to_disk`` wrote.

``datasets`` maps the Arrow files of a saved data set and trusts their contents. If a file is
damaged, reading can kill the process; if it was cut short between two batches, its rows are
silently missing. So the frames of each file are compared with its size before they are mapped, and
the columns of each batch with their buffers, which costs milliseconds. The values are compared with
their offsets when they are read.
"""

from __future__ import annotations

import bisect
import itertools
import json
import os
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from brimful.base.fingerprint import fingerprint_bytes, fingerprint_of
from brimful.base.hub import offline_if_unreachable
from brimful.base.optional import optional
from brimful.base.ragged import offsets_of
from brimful.base.typing import AnyPath, Fingerprint
from brimful.errors import SourceError, SourceNotFoundError
from brimful.sources.directory import require_split
from brimful.sources.memory import rows_of_table, table_fingerprint
from brimful.sources.rows import Block, Rows, UniformBlockRows, block_ranges, joined
from brimful.sources.stamp import Stamp

_PIECE_ROWS = 65536
"""Maximum rows of a piece of a row group: more than in other blocks, since reading any row decodes
the whole group.
"""

_GROUPS_IN_MEMORY = 2
"""Number of decoded row groups that a reader holds: reading may go back and forth across a
boundary.
"""


class ParquetRows(Rows):
    """Rows of one Parquet file. The row groups read last stay decoded."""

    lies_in_files = True

    def __init__(self, path: AnyPath, stamp: Stamp | None = None) -> None:
        """``stamp``: in a worker process, the file's stamp in the parent; a file that has changed
        since is refused.
        """
        self._path = os.fspath(path)
        self.title = self._path
        try:
            self._stamp = stamp or Stamp.of(self._path)
        except OSError as error:
            raise SourceNotFoundError(f"{self.title}: no such file") from error
        self._metadata: Any = None
        self._metadata, self._schema = self._of_file(
            lambda file: (file.metadata, file.schema_arrow), f"{self.title} is not a Parquet file"
        )
        self._groups: dict[int, Any] = {}
        self._group_metadata = [
            *map(self._metadata.row_group, range(self._metadata.num_row_groups))
        ]
        self._offsets = offsets_of([group.num_rows for group in self._group_metadata])

    def __reduce__(self) -> tuple[Any, ...]:
        return ParquetRows, (self._path, self._stamp)

    def __len__(self) -> int:
        return int(self._offsets[-1])

    def _of_file(self, read: Callable[[Any], Any], fault: str) -> Any:
        """Return what a function reads from the file, which is opened each time: there may be more
        files than handles.

        It is not mapped: a file truncated meanwhile would kill the process with a bus error.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            with pq.ParquetFile(self._path, metadata=self._metadata) as file:
                result = read(file)
        except (OSError, pa.ArrowException) as error:
            # A file that was overwritten also fails to decode: the change is the better message.
            self._stamp.check(self._path)
            raise SourceError(f"{fault}: {str(error).splitlines()[0]}") from error
        self._stamp.check(self._path)
        return result

    def _group(self, group: int) -> Any:
        """Return the Arrow table of a row group, from memory if it was read lately."""
        table = self._groups.get(group)
        if table is None:
            fault = f"{self.title}: row group {group} is damaged"
            table = self._of_file(lambda file: file.read_row_group(group), fault)
            if len(self._groups) == _GROUPS_IN_MEMORY:
                del self._groups[next(iter(self._groups))]
            self._groups[group] = table
        return table

    def read(self, start: int, stop: int) -> Iterator[Any]:
        while start < stop:
            group = int(np.searchsorted(self._offsets, start, side="right")) - 1
            first, end = int(self._offsets[group]), min(int(self._offsets[group + 1]), stop)
            yield from rows_of_table(self._group(group), start - first, end - first)
            start = end

    @cached_property
    def _pieces(self) -> Sequence[Block]:
        """Row groups, each with the fingerprint of its content; a large one in several pieces."""
        pieces: list[Block] = []
        edges = self._offsets.tolist()
        with open(self._path, "rb") as file:
            for group, first, end in zip(self._group_metadata, edges, edges[1:], strict=False):
                digest = _group_fingerprint(file, group)
                # A row group is hashed as a whole: the rows of a piece are identified by their
                # place in it.
                for start, stop in block_ranges(first, end, _PIECE_ROWS):
                    num_bytes = group.total_byte_size * (stop - start) // group.num_rows
                    identity = fingerprint_of([digest, start - first, stop - first])
                    pieces.append(Block(start, stop, identity, num_bytes))
        self._stamp.check(self._path)
        return pieces

    @cached_property
    def blocks(self) -> Sequence[Block]:
        return [*joined(self._pieces)]

    @property
    def fingerprint(self) -> Fingerprint:
        return fingerprint_of([str(self._schema), [piece.fingerprint for piece in self._pieces]])


def _group_fingerprint(file: Any, group: Any) -> Fingerprint:
    """Return the fingerprint of the stored bytes of a row group's columns.

    Hashing them is cheaper than decoding, and different contents have different bytes.
    """
    digests = []
    for column_index in range(group.num_columns):
        column = group.column(column_index)
        # The dictionary page, if any, comes before the data pages and belongs to the column.
        offsets = [column.data_page_offset]
        if column.has_dictionary_page and column.dictionary_page_offset:
            offsets.append(column.dictionary_page_offset)
        file.seek(min(offsets))
        digests.append(
            [column.path_in_schema, fingerprint_bytes(file.read(column.total_compressed_size))]
        )
    return fingerprint_of([group.num_rows, digests])


_ROWS_AT_ONCE = 1024
"""Number of rows that are checked and converted together."""

_END = b"\xff\xff\xff\xff\0\0\0\0"
"""The last bytes of an Arrow stream."""


class HuggingFaceRows(UniformBlockRows):
    """Rows of a ``datasets.Dataset``."""

    def __init__(
        self,
        dataset: Any,
        title: str | None = None,
        *,
        files: Sequence[tuple[str, int]] | None = None,
    ) -> None:
        """``files``: Arrow files of the rows in order, with the number of rows in each; None if
        unknown.
        """
        if files is not None and getattr(dataset, "_indices", None) is None:
            ends = list(itertools.accumulate(num_rows for _, num_rows in files))
            paths = [path for path, _ in files]
        else:
            ends, paths = (
                None,
                list(dict.fromkeys(file["filename"] for file in dataset.cache_files)),
            )
        # Set before the data set: pickled attributes are restored in this order, and the data set
        # maps the files.
        self._files = _Files([(path, Stamp.of(path)) for path in paths], ends)
        self._dataset = dataset
        self.title = title or "datasets.Dataset"

    @classmethod
    def from_directory(cls, path: AnyPath, *, split: str | None = None) -> HuggingFaceRows:
        """Open a directory that ``save_to_disk`` wrote.

        Raises:
            SettingsError: it holds several splits, and ``split`` is None.
            SourceNotFoundError: it has no such split.
            SourceError: a file of it is damaged.
        """
        name = os.fspath(path)
        datasets = _library(f"reading {name}")
        splits = _saved_splits(name)
        if splits:
            name = os.path.join(name, require_split(splits, split, title=name))
        # Checked before datasets maps the files: a damaged one could kill the process.
        files = _saved_files(name)
        try:
            dataset = datasets.load_from_disk(name)
        except Exception as error:  # datasets raises many kinds of errors for damaged files
            raise SourceError(
                f"{name} cannot be opened by datasets: {str(error).split(chr(10), 1)[0]}"
            ) from error
        rows = cls(dataset, title=name, files=files)
        rows.lies_in_files = True
        return rows

    @classmethod
    def from_hub(cls, name: str, *, split: str, config: str | None = None) -> HuggingFaceRows:
        """Open a data set of the hub, or from the cache of ``datasets`` if the hub cannot be
        reached.

        Raises:
            SourceNotFoundError: it does not exist, or is neither reachable nor in the cache; one
                line, at once.
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

    def read(self, start: int, stop: int) -> Iterator[Any]:
        for first, end in block_ranges(start, stop, _ROWS_AT_ONCE):
            # As they are stored: media as bytes or a path. ``datasets`` would decode an image at
            # each read.
            rows = self._checked(first, end).to_pylist()
            self._files.check(first, end)
            yield from rows

    def _checked(self, start: int, stop: int) -> Any:
        """Return the Arrow table of some rows after checking its values against their offsets.

        The files are mapped: reading a text that begins after the end of its file would kill the
        process.
        """
        import pyarrow as pa

        self._files.check(start, stop)
        try:
            table = self._dataset.with_format("arrow")[start:stop]
            table.validate(full=True)
        except (pa.ArrowException, OSError, ValueError) as error:
            detail = str(error).split("\n", 1)[0]
            raise SourceError(
                f"{self.title}: rows {start:,} to {stop - 1:,} are damaged: {detail}"
            ) from error
        return table

    def block_fingerprint(self, start: int, stop: int) -> Fingerprint:
        fingerprint = table_fingerprint(self._checked(start, stop))
        self._files.check(start, stop)
        return fingerprint


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
            first, last = (
                bisect.bisect_right(self._ends, start),
                bisect.bisect_left(self._ends, stop) + 1,
            )
        for path, stamp in self._stamps[first:last]:
            stamp.check(path)


def _saved_files(path: str) -> list[tuple[str, int]]:
    """Return the Arrow files of a saved data set in order, each with its number of rows.

    Raises:
        SourceError: one of its files is missing, cut short or damaged.
    """
    state = _json(os.path.join(path, "state.json"))
    info = _json(os.path.join(path, "dataset_info.json"))
    try:
        names = [str(entry["filename"]) for entry in state["_data_files"]]
    except (KeyError, TypeError) as error:
        raise SourceError(
            f"{path}/state.json is damaged: it does not name the data files"
        ) from error
    return [(file := os.path.join(path, name), _checked_rows(file, info)) for name in names]


def _saved_splits(path: str) -> list[str]:
    """Return the names of the splits in a saved ``DatasetDict``; none in a saved ``Dataset``."""
    if not os.path.exists(name := os.path.join(path, "dataset_dict.json")):
        return []
    splits = _json(name).get("splits")
    if not isinstance(splits, list) or not splits:
        raise SourceError(f"{name} is damaged: it does not name the splits")
    return [str(split) for split in splits]


def _json(path: str) -> dict[str, Any]:
    """Read a JSON object, or say which file is missing or damaged."""
    try:
        with open(path, "rb") as file:
            value = json.load(file)
    except FileNotFoundError as error:
        raise SourceError(f"{path} is missing: every saved data set has one") from error
    except ValueError as error:
        raise SourceError(f"{path} is damaged: {error}") from error
    if not isinstance(value, dict):
        raise SourceError(f"{path} is damaged: it holds {type(value).__name__}")
    return value


def _checked_rows(path: str, info: dict[str, Any]) -> int:
    """Return the number of rows in an Arrow file after checking its frames and columns."""
    import pyarrow as pa

    try:
        # A file that was cut short between two batches is a stream without an end, which Arrow
        # accepts.
        with open(path, "rb") as file:
            file.seek(-min(len(_END), os.fstat(file.fileno()).st_size), os.SEEK_END)
            if file.read() != _END:
                raise SourceError(f"{path} is cut short: save the data set again")
        num_rows = 0
        with pa.memory_map(path) as file, pa.ipc.open_stream(file) as stream:
            # datasets converts all values of columns whose saved type differs when it opens them:
            # check them first.
            must_check_values = not _has_saved_types(stream.schema, info)
            for batch in stream:
                batch.validate(full=must_check_values)
                num_rows += batch.num_rows
    except FileNotFoundError as error:
        raise SourceError(f"{path} is missing: save the data set again") from error
    except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
        raise SourceError(f"{path} is damaged: {str(error).splitlines()[0]}") from error
    return num_rows


def _has_saved_types(schema: Any, info: dict[str, Any]) -> bool:
    """Return true if the columns of a file have the types in the data set's description."""
    import datasets

    try:
        features = datasets.Features.from_dict(info["features"])
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
    return bool(features.arrow_schema.remove_metadata().equals(schema.remove_metadata()))
