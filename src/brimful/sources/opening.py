"""The entry point: ``open_source`` turns a path, or data in memory, into a ``Source``."""

import glob
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from brimful.base.arguments import as_settings, understands
from brimful.base.blobs import is_remote
from brimful.base.checks import path_of
from brimful.base.hub import looks_like_hub_id
from brimful.base.typing import AnyPath
from brimful.base.wings import READER_MODULES
from brimful.base.wording import setting
from brimful.errors import SettingsError, SourceError, SourceNotFoundError
from brimful.sources.arrow_files import HuggingFaceRows, ParquetRows
from brimful.sources.copies import (
    is_json_array,
    rows_of_iterable,
    rows_of_pipe,
    unpacked,
)
from brimful.sources.directory import TextFiles, data_files, require_split
from brimful.sources.lines import JsonArray, JsonLines, TextLines
from brimful.sources.memory import DatasetRows, MemoryRows, TableRows, is_table
from brimful.sources.rows import ChainedRows, FirstRows, Rows
from brimful.sources.settings import RowSettings, SourceSettings
from brimful.sources.source import Source
from brimful.sources.stamp import require_file

_Settings = TypeVar("_Settings", bound=RowSettings)

STANDARD_INPUT = "-"
"""Path that means standard input."""

_ITEMS_CHECKED_AS_PATHS = 64
"""Number of texts of a list that are looked up as file names: a list of documents has none among
its first.
"""

_COMPRESSED = (".gz", ".gzip", ".zst", ".zstd", ".bz2")


class FileType(NamedTuple):
    """Files of rows that are read in one way.

    Attributes:
        title: in messages.
        endings: of their names, after unpacking.
        opener: class of their rows: of a path, or of lines (``lines.Lines``) that are copied first
            if they are compressed or remote. None if each file has a layout of its own
            (``READER_MODULES``).
        in_place: files are read where they are, so they are neither compressed nor remote.
    """

    title: str
    endings: tuple[str, ...]
    opener: Callable[..., Rows] | None
    in_place: bool = False


FILE_TYPES = {
    "lines": FileType("JSON lines", (".jsonl", ".ndjson"), JsonLines),
    # Many such files hold JSON lines.
    "array": FileType("JSON", (".json",), JsonLines),
    "parquet": FileType("Parquet", (".parquet",), ParquetRows, in_place=True),
    "tar": FileType("a tar", (".tar",), None, in_place=True),
    "text": FileType("text", (".txt", ".md", ".rst", ".text"), TextLines),
}
"""Kinds of files by name; a file without an ending of any holds JSON lines."""

LINE_ENDINGS = FILE_TYPES["lines"].endings
"""Endings of files to which rows may be appended."""

_SAVED_FILES = ("dataset_info.json", "dataset_dict.json")


@understands({}, SourceSettings)
def open_source(
    data: Any,
    settings: SourceSettings | None = None,
    *,
    media: bool = False,
    cache_dir: AnyPath | None = None,
    **options: Any,
) -> Source:
    """Open a data set by index.

    =================================  ====================================================
    a list of rows or texts            as it is
    a ``datasets.Dataset``             as it is; a ``DatasetDict``: its ``split``
    a DataFrame, a pyarrow table       as it is
    a torch ``Dataset`` with an index  as it is, each row read again
    an iterable, a streamed data set   kept in the cache first
    ``data.jsonl`` (.gz .zst .bz2)     one JSON object a line
    ``chunk_00000.jsonl`` of packs     one row a sample, as ms-swift's sharded loader reads them
    ``data.json``                      one JSON array of objects
    ``data.parquet``                   one row a sample
    ``shard.tar``                      members of one key a row, as in WebDataset
    ``notes.txt`` (.md .rst)           one document (``text_unit="line"``: one a line)
    a directory                        its data files in the order of their names, of one ``split``
    a directory of pairs               ``{name}.json`` a row, next to its image, video or audio
    a directory of ``save_to_disk``    a ``datasets.Dataset``
    ``shard-*.jsonl``                  what the pattern matches, in the order of the names
    ``owner/name`` with a ``split``    of the hub, through ``datasets``
    ``-``                              JSON lines from standard input
    a list of paths, or of sources     one after the other, each with its own format
    =================================  ====================================================

    Args:
        data: any of the above; a path may be a URL that fsspec opens.
        settings, options: a ``SourceSettings``, or its fields as keywords, which are explained
            below.
        format: name of the rows' format (``brimful.sources.formats.FORMATS``); detected for each
            file if None.
        fields: keys of the rows, by the format's field names: ``{"messages": "dialogue"}``.
        ignore: columns that may be left out although they change what a sample means (``images``,
            ``label``), and marks that are plain text here (``<image>``).
        prompt: turn of the user for captions, boxes and transcripts, whose rows have none; None for
            the format's default (``brimful.sources.formats``).
        text_unit: one document of a text file: the whole ``file``, or a ``line``.
        split: of a data set that has several; ``all`` takes every split of a directory.
        config: of a data set that has several configurations.
        max_samples: number of rows to take from the beginning; None takes all.
        per_turn: make a sample of each answer of a conversation, after the turns before it, with
            that answer as its only target; of each caption, if a medium has several.
        media: take rows with images, videos and audio, for an encoder that packs them; else they
            are refused.
        media_dir: directory to which media names in rows are relative; the directory of their file
            if None. Implies ``media``.
        media_outside: let rows name files outside that directory, and let tars have members that
            are links, or whose names lead out of a directory.
        cache_dir: directory of line indexes and unpacked copies.

    Raises:
        SourceNotFoundError: no such file, directory or data set.
        UnknownFormatError: rows of no known format.
        SourceError: an empty data set, or a file that cannot be read.
        SettingsError: a value that is not a source, or a data set of several splits without a
            chosen one.

    >>> open_source([{"prompt": "1+1?", "completion": "2"}]).format_name
    'prompt_completion'
    """
    settings = row_settings(as_settings(SourceSettings, settings, options), media=media)
    if cache_dir is not None:
        path_of("cache_dir", cache_dir, "the path of a directory")
    cache = None if cache_dir is None else Path(cache_dir)
    sources = data if isinstance(data, (list, tuple)) else [data]
    if sources and all(isinstance(source, Source) for source in sources):
        names = ("format", "fields", "ignore", "prompt", "max_samples", "per_turn")
        if any(getattr(settings, name) not in (None, (), False) for name in names):
            raise SettingsError(
                "open sources take no further options: give them where each is opened"
            )
        return sources[0] if len(sources) == 1 else Source.chained(sources, "several sources")
    rows = _Opening(settings, cache).rows(data)
    if settings.max_samples is not None:
        rows = _first_rows(rows, settings.max_samples)
    source = Source(rows, settings, cache)
    if settings.per_turn and not source.per_turn:
        raise SettingsError(
            f"{setting('per_turn')} has no effect on rows of format {source.format_name}, which "
            "have no turns: leave it out"
        )
    return source


def row_settings(settings: _Settings, *, media: bool) -> _Settings:
    """Return settings with which rows with media are taken, if ``media`` or a directory of theirs
    says so.
    """
    return replace(settings, media_dir="") if media and settings.media_dir is None else settings


def _first_rows(rows: Rows, count: int) -> Rows:
    """Keep the first ``count`` rows; complete files stay as they are, so that a longer run reuses
    their work.
    """
    if count >= len(rows):
        return rows
    if not isinstance(rows, ChainedRows):
        return FirstRows(rows, count)
    pairs = zip(rows.files, rows.starts, strict=True)
    return ChainedRows(
        [_first_rows(file, count - start) for file, start in pairs if start < count], rows.title
    )


@dataclass(frozen=True)
class _Opening:
    """The way from data to rows, with these settings.

    Attributes:
        settings: of the source.
        cache: directory of line indexes and copies; None for the default.
    """

    settings: SourceSettings
    cache: Path | None

    def rows(self, data: Any) -> Rows:
        """Open anything that is not a source. The order matters: a path is also a sequence, a data
        set also iterable.
        """
        if isinstance(data, Rows):
            return data
        if isinstance(data, (str, os.PathLike)):
            return self.from_path(os.fspath(data))
        if isinstance(data, Sequence) and not isinstance(data, (bytes, bytearray)):
            return self._from_list(data)
        if is_table(data):
            return TableRows.of(data)
        if hasattr(data, "with_format") and hasattr(data, "column_names"):
            if isinstance(data, Mapping):
                title = f"a {type(data).__name__}"
                split = require_split(data, self.settings.split, title=title)
                return self.rows(data[split])
            # A streamed data set has no length: it is an iterable like any other.
            if hasattr(data, "__len__"):
                return HuggingFaceRows(data)
        if isinstance(data, Iterable) and not isinstance(data, (bytes, bytearray, Mapping)):
            return rows_of_iterable(data, f"{type(data).__name__} in memory", self.cache)
        if (
            hasattr(data, "__getitem__")
            and hasattr(data, "__len__")
            and not isinstance(data, (bytes, bytearray, Mapping))
        ):
            return DatasetRows(data, type(data).__name__)
        raise SettingsError(
            "a source is a path, a list of rows, a DataFrame or a data set of datasets, not "
            f"{type(data).__name__}"
        )

    def _from_list(self, data: Sequence[Any]) -> Rows:
        """Open a list of rows or of paths: texts are paths if all of them exist, or one that exists
        can only be a path.
        """
        items = data[:_ITEMS_CHECKED_AS_PATHS]
        names = list(filter(_is_path, items))
        # A text of one word may be the name of a directory here, such as tests.
        if not names or (len(names) < len(items) and all(map(_is_word, names))):
            return MemoryRows(data)
        # Chains are flattened: each file is a part with its own format.
        opened = [self.from_path(os.fspath(item)) for item in data]
        files = [rows.files if isinstance(rows, ChainedRows) else [rows] for rows in opened]
        return ChainedRows([*chain.from_iterable(files)], "several files")

    def from_path(self, path: str) -> Rows:
        """Open a file, a directory, a pattern, or a data set of the hub."""
        split, config = self.settings.split, self.settings.config
        if path == STANDARD_INPUT:
            return rows_of_pipe(sys.stdin.buffer, self.cache)
        if any(os.path.isfile(os.path.join(path, name)) for name in _SAVED_FILES):
            return HuggingFaceRows.from_directory(path, split=split)
        if os.path.isdir(path):
            rows = self._in_layout(path, "directory")
            if rows is not None:
                return rows
            paths = data_files(path, file_type_of, split=split, config=config)
            if not paths:
                titles = " or ".join(file_type.title for file_type in FILE_TYPES.values())
                raise SourceNotFoundError(f"{path}: no file in it is {titles}")
            return self._from_files(paths, path)
        if is_remote(path) or os.path.exists(path):
            return ChainedRows([self._from_file(path)], path)
        if glob.has_magic(path):
            paths = sorted(
                match for match in glob.glob(path, recursive=True) if os.path.isfile(match)
            )
            if not paths:
                raise SourceNotFoundError(f"{path}: no file matches")
            return self._from_files(paths, path)
        # A name with a file ending is a missing file, not a data set of the hub.
        is_hub_id = looks_like_hub_id(path) and file_type_of(path) is None
        if is_hub_id and split is not None:
            return HuggingFaceRows.from_hub(path, split=split, config=config)
        hint = (
            f" (a data set of the hub is opened with {setting('split', 'train')})"
            if is_hub_id
            else ""
        )
        raise SourceNotFoundError(f"{path}: no such file or directory{hint}")

    def _in_layout(self, path: str, file_type: str | None) -> Rows | None:
        """Return the rows of a path of this kind in a layout of its own; None if it has none."""
        readers = (
            import_module(module).open_rows(path, self.settings, self.cache)
            for module in READER_MODULES.get(file_type or "", ())
        )
        return next((rows for rows in readers if rows is not None), None)

    def _from_files(self, paths: Sequence[str], title: str) -> Rows:
        """Open several files as one; files of one document each share blocks, since there may be
        millions.
        """
        if self.settings.text_unit == "file" and all(
            file_type_of(path) == "text" for path in paths
        ):
            for path in paths:
                require_file(path)
            return TextFiles([self._plain(path) for path in paths], title, titles=paths)
        return ChainedRows([self._from_file(path) for path in paths], title)

    def _plain(self, path: str) -> str:
        """Return the path of the file, or of an unpacked copy of it."""
        needs_copy = is_remote(path) or path.lower().endswith(_COMPRESSED)
        return unpacked(path, self.cache) if needs_copy else path

    def _from_file(self, path: str) -> Rows:
        require_file(path)
        name, is_compressed = _type_and_compression(path)
        file_type = FILE_TYPES[name or "lines"]
        if file_type.in_place and (is_compressed or is_remote(path)):
            hint = f"unpack it to {file_type.endings[0]}" if is_compressed else "copy it here"
            raise SourceError(
                f"{path}: {file_type.title} is read in place and must be a local file, not "
                f"compressed: {hint} first"
            )
        rows = None if is_remote(path) else self._in_layout(path, name)
        if rows is not None:
            return rows
        opener = file_type.opener
        assert opener is not None, f"no layout has {path}"
        if file_type.in_place:
            return opener(path)
        if name == "text" and self.settings.text_unit == "file":
            return TextFiles([self._plain(path)], path, titles=[path])
        if name == "array" and is_json_array(path):
            plain, opener = unpacked(path, self.cache, is_array=True), JsonArray
        else:
            plain = self._plain(path)
        original = path if is_remote(path) else os.path.realpath(path)
        return opener(plain, cache=self.cache, title=path, original=original)


def _is_path(item: Any) -> bool:
    """Return true for a path, or for a text that is the name of a file; a document hardly ever
    is.
    """
    if not isinstance(item, str):
        return isinstance(item, os.PathLike)
    return len(item) < 4096 and "\n" not in item and "\0" not in item and os.path.exists(item)


def _is_word(item: Any) -> bool:
    return isinstance(item, str) and file_type_of(item) is None and os.sep not in item


def file_type_of(name: str) -> str | None:
    """Return the kind of a file by its name; None for others, and for a compressed file of a kind
    that is read in place.
    """
    file_type, is_compressed = _type_and_compression(name)
    return None if file_type and is_compressed and FILE_TYPES[file_type].in_place else file_type


def _type_and_compression(name: str) -> tuple[str | None, bool]:
    base = plain = re.sub(r"\.tgz$", ".tar.gz", name.lower())
    while plain.endswith(_COMPRESSED):
        plain = plain.rpartition(".")[0]
    types = (file_type for file_type, facts in FILE_TYPES.items() if plain.endswith(facts.endings))
    return next(types, None), plain != base
