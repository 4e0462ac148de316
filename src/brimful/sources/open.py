"""From a path, or something in memory, to a ``Source``."""

from __future__ import annotations

import glob
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from brimful.checks import check_type, path_of
from brimful.errors import SettingsError, SourceError, SourceNotFoundError
from brimful.hub import looks_like_hub_id
from brimful.messages import setting
from brimful.remote import is_remote
from brimful.sources.directory import data_files
from brimful.sources.huggingface import HuggingFaceRows
from brimful.sources.lines import JsonArray, JsonLines, TextLines
from brimful.sources.memory import MemoryRows
from brimful.sources.parquet import ParquetRows
from brimful.sources.rows import ChainedRows, FirstRows, Rows
from brimful.sources.source import Source
from brimful.sources.spool import rows_of_iterable, rows_of_pipe
from brimful.sources.table import TableRows, is_table
from brimful.sources.text_files import TextFiles
from brimful.sources.unpack import begins_like_array, unpacked_json_array, unpacked_lines

__all__ = ["STANDARD_INPUT", "TextUnit", "open_source"]

TextUnit: TypeAlias = Literal["file", "line"]

STANDARD_INPUT = "-"
"""Path that stands for standard input."""

_ITEMS_LOOKED_AT = 64
"""Texts of a list that are held against the names of files: a list of millions of texts has none among its first."""

_PACKED = (".gz", ".gzip", ".zst", ".zstd", ".bz2")
_LINES = (".jsonl", ".ndjson")
_TEXTS = (".txt", ".md", ".rst", ".text")
_SAVED = ("dataset_info.json", "dataset_dict.json")


@dataclass(frozen=True)
class _Opening:
    """How files are opened."""

    text_unit: TextUnit
    split: str | None
    config: str | None
    cache: Path | None


def open_source(
    data: Any,
    *,
    format: str | None = None,
    fields: Mapping[str, str] | None = None,
    ignore: Sequence[str] = (),
    text_unit: TextUnit = "file",
    split: str | None = None,
    config: str | None = None,
    max_samples: int | None = None,
    cache_dir: str | os.PathLike[str] | None = None,
) -> Source:
    """Open a data set by index.

    =================================  ====================================================
    a list of rows or texts            as it is
    a ``datasets.Dataset``             as it is; a ``DatasetDict``: its ``split``
    a DataFrame, a pyarrow table       as it is
    an iterable, a streamed data set   kept in the cache first
    ``data.jsonl`` (.gz .zst .bz2)     one JSON object a line
    ``data.json``                      one JSON array of objects
    ``data.parquet``                   one row a sample
    ``notes.txt`` (.md .rst)           one document (``text_unit="line"``: one a line)
    a directory                        its data files in the order of their names, of one ``split``
    a directory of ``save_to_disk``    a ``datasets.Dataset``
    ``shard-*.jsonl``                  what the pattern matches, in the order of the names
    ``owner/name`` with a ``split``    of the hub, through ``datasets``
    ``-``                              JSON lines from standard input
    a list of paths, or of sources     one after the other, each with its own format
    =================================  ====================================================

    Args:
        data: any of the above; a path may be a URL that fsspec opens.
        format: what rows look like (``brimful.sources.formats.FORMATS``); found out for each file if None.
        fields: keys of the rows, by the format's own names: ``{"messages": "dialogue"}``.
        ignore: columns that may be left out though they change what a sample means (``images``, ``label``), and marks
            that are plain text here (``<image>``).
        text_unit: what one document of a text file is: the whole ``file``, or a ``line``.
        split: of a data set that has several; ``all`` in a directory.
        config: of a data set that has several configurations.
        max_samples: take the first so many.
        cache_dir: where line indexes and unpacked copies lie.

    Raises:
        SourceNotFoundError: nothing there.
        UnknownFormatError: rows of no known format.
        SourceError: an empty data set, or a file that cannot be read.
        SettingsError: a value that is no source, or a data set of several splits and none named.

    >>> open_source([{"prompt": "1+1?", "completion": "2"}]).format_name
    'prompt_completion'
    """
    if fields is not None:
        check_type("fields", fields, Mapping, "a mapping such as {'messages': 'dialogue'}")
    if cache_dir is not None:
        path_of("cache_dir", cache_dir, "the path of a directory")
    if text_unit not in ("file", "line"):
        raise SettingsError(f"{setting('text_unit')} {text_unit!r} is unknown: use file or line")
    if max_samples is not None and max_samples < 1:
        raise SettingsError(f"{setting('max_samples')} must be at least 1 and is {max_samples}")
    if isinstance(ignore, str):
        ignore = [ignore]
    opening = _Opening(text_unit, split, config, Path(cache_dir) if cache_dir is not None else None)
    several = _sources_of(data)
    if several is not None:
        if format is not None or fields is not None or ignore or max_samples is not None:
            raise SettingsError("open sources take no further options: give them where each is opened")
        return several[0] if len(several) == 1 else Source.chained(several, "several sources")
    rows = _rows(data, opening)
    if max_samples is not None:
        rows = _first(rows, max_samples)
    return Source(rows, format, fields, ignore)


def _sources_of(data: Any) -> list[Source] | None:
    """Sources that are open already, if that is what was given."""
    if isinstance(data, Source):
        return [data]
    if isinstance(data, (list, tuple)) and data and all(isinstance(item, Source) for item in data):
        return list(data)
    return None


def _first(rows: Rows, count: int) -> Rows:
    if count >= len(rows):
        return rows
    if not isinstance(rows, ChainedRows):
        return FirstRows(rows, count)
    kept = [_first(part, count - start) for part, start in zip(rows.parts, rows.starts, strict=True) if start < count]
    return ChainedRows(kept, rows.title)


def _rows(data: Any, opening: _Opening) -> Rows:
    if isinstance(data, Rows):
        return data
    if isinstance(data, (str, os.PathLike)):
        return _from_path(os.fspath(data), opening)
    if isinstance(data, Sequence) and not isinstance(data, (bytes, bytearray)):
        return _from_list(data, opening)
    if is_table(data):
        return TableRows.of(data)
    if hasattr(data, "with_format") and hasattr(data, "column_names"):
        return _from_datasets(data, opening)
    if isinstance(data, Iterable) and not isinstance(data, (bytes, bytearray, Mapping)):
        return rows_of_iterable(data, f"{type(data).__name__} in memory", opening.cache)
    raise SettingsError(
        f"a source is a path, a list of rows, a DataFrame or a data set of datasets, not {type(data).__name__}"
    )


def _from_list(data: Sequence[Any], opening: _Opening) -> Rows:
    """Rows, or paths one after the other: texts that are all names of files are paths."""
    first = data[:_ITEMS_LOOKED_AT]
    if not any(isinstance(item, os.PathLike) or (isinstance(item, str) and _is_there(item)) for item in first):
        return MemoryRows(data)
    paths = [isinstance(item, os.PathLike) or (isinstance(item, str) and _is_there(item)) for item in data]
    if not all(paths):
        missing = data[paths.index(False)]
        raise SourceNotFoundError(f"{str(missing)[:200]!r} of the list is no file, and others are: give paths or texts")
    parts: list[Rows] = []
    for item in data:
        rows = _from_path(os.fspath(item), opening)
        parts += rows.parts if isinstance(rows, ChainedRows) else [rows]
    return ChainedRows(parts, "several files")


def _is_there(text: str) -> bool:
    """Whether a text is the name of a file: a document hardly is."""
    return len(text) < 4096 and "\n" not in text and "\0" not in text and os.path.exists(text)


def _from_datasets(data: Any, opening: _Opening) -> Rows:
    if isinstance(data, Mapping):  # a DatasetDict
        if opening.split is None:
            first = "train" if "train" in data else next(iter(data), "train")
            raise SettingsError(
                f"a {type(data).__name__} holds several splits ({', '.join(map(str, data))}): name one with "
                f"{setting('split', first)}"
            )
        if opening.split not in data:
            raise SourceNotFoundError(
                f"{setting('split', opening.split)}: there is no such split (it has {', '.join(map(str, data))})"
            )
        return _from_datasets(data[opening.split], opening)
    if hasattr(data, "__len__"):
        return HuggingFaceRows(data)
    return rows_of_iterable(data, f"{type(data).__name__} in memory", opening.cache)


def _from_path(path: str, opening: _Opening) -> Rows:
    if path == STANDARD_INPUT:
        return rows_of_pipe(sys.stdin.buffer, opening.cache)
    if os.path.isdir(path):
        return _from_directory(path, opening)
    if is_remote(path) or os.path.exists(path):
        return ChainedRows([_from_file(path, opening)], path)
    if glob.has_magic(path):
        found = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
        if not found:
            raise SourceNotFoundError(f"{path}: no file matches")
        return _from_files(found, path, opening)
    if looks_like_hub_id(path) and _kind(path) is None:
        if opening.split is not None:
            return HuggingFaceRows.from_hub(path, split=opening.split, config=opening.config)
        raise SourceNotFoundError(
            f"{path}: no such file or directory (a data set of the hub is opened with {setting('split', 'train')})"
        )
    raise SourceNotFoundError(f"{path}: no such file or directory")


def _from_directory(path: str, opening: _Opening) -> Rows:
    if any(os.path.isfile(os.path.join(path, name)) for name in _SAVED):
        return HuggingFaceRows.from_directory(path, split=opening.split)
    names, _ = data_files(path, _kind, split=opening.split, config=opening.config)
    return _from_files(names, path, opening)


def _from_files(paths: Sequence[str], title: str, opening: _Opening) -> Rows:
    if opening.text_unit == "file" and all(_kind(path) == "text" for path in paths):
        return TextFiles([_plain(path, opening) for path in paths], title, shown=paths)
    return ChainedRows([_from_file(path, opening) for path in paths], title)


def _kind(name: str) -> str | None:
    base = name.lower()
    while base.endswith(_PACKED):
        base = base.rpartition(".")[0]
    if base.endswith(_LINES):
        return "lines"
    if base.endswith(".json"):
        return "array"
    if base.endswith(".parquet") and base == name.lower():
        return "parquet"
    if base.endswith(_TEXTS):
        return "text"
    return None


def _plain(path: str, opening: _Opening) -> str:
    """Path of the file, or of an unpacked copy of it."""
    packed = is_remote(path) or path.lower().endswith(_PACKED)
    return unpacked_lines(path, opening.cache) if packed else path


def _from_file(path: str, opening: _Opening) -> Rows:
    kind = _kind(path)
    if kind == "parquet" and is_remote(path):
        raise SourceError(f"{path}: Parquet is read in place, which takes a local file: copy it here first")
    if kind == "parquet":
        return ParquetRows(path)
    if kind == "array" and begins_like_array(path):
        return JsonArray(unpacked_json_array(path, opening.cache), cache=opening.cache, title=path)
    if kind == "text" and opening.text_unit == "file":
        return TextFiles([_plain(path, opening)], path, shown=[path])
    lines = TextLines if kind == "text" else JsonLines
    return lines(_plain(path, opening), cache=opening.cache, title=path)
