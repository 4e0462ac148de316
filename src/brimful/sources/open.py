"""From a path, or something in memory, to a ``Source``."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeAlias

from brimful.errors import SettingsError, SourceError, SourceNotFoundError
from brimful.remote import is_remote
from brimful.sources.lines import JsonArray, JsonLines, TextLines
from brimful.sources.memory import MemoryRows
from brimful.sources.parquet import ParquetRows
from brimful.sources.rows import ChainedRows, Rows
from brimful.sources.source import Source
from brimful.sources.text_files import TextFiles
from brimful.sources.unpack import begins_like_array, unpacked_json_array, unpacked_lines

__all__ = ["TextUnit", "open_source"]

TextUnit: TypeAlias = Literal["auto", "file", "line"]

_PACKED = (".gz", ".gzip", ".zst", ".zstd", ".bz2")
_LINES = (".jsonl", ".ndjson")
_TEXTS = (".txt", ".md", ".rst", ".text")


def open_source(
    data: Any,
    *,
    format: str | None = None,
    fields: Mapping[str, str] | None = None,
    text_unit: TextUnit = "auto",
    cache_dir: str | os.PathLike[str] | None = None,
) -> Source:
    """Open a data set by index.

    =================================  ====================================================
    a list of rows                     as it is
    a ``datasets.Dataset``             as it is
    ``data.jsonl`` (.gz .zst .bz2)     one JSON object a line
    ``data.json``                      one JSON array of objects
    ``data.parquet``                   one row a sample
    ``notes.txt`` (.md .rst)           one document a line (``text_unit="file"``: the whole file)
    a directory of texts               one document a file (``text_unit="line"``: a line)
    a directory of the others          all its files in the order of their names
    a directory of ``save_to_disk``    a ``datasets.Dataset``
    ``shard-*.jsonl``                  what the pattern matches, in the order of the names
    a list of paths                    one after the other
    =================================  ====================================================

    Args:
        data: any of the above; a path may be a URL that fsspec opens.
        format: what rows look like (``brimful.sources.formats.FORMATS``); detected from the first rows if None.
        fields: keys of the rows, by the format's own names: ``{"messages": "dialogue"}``.
        text_unit: what one document of a text file is.
        cache_dir: where line indexes and unpacked copies lie.

    Raises:
        SourceNotFoundError: nothing there.
        UnknownFormatError: rows of no known format.
        SourceError: an empty data set, or a file that cannot be read.

    >>> open_source([{"prompt": "1+1?", "completion": "2"}]).format.name
    'prompt_completion'
    """
    cache = Path(cache_dir) if cache_dir is not None else None
    return Source(_rows(data, text_unit, cache), format, fields)


def _rows(data: Any, text_unit: TextUnit, cache: Path | None) -> Rows:
    if isinstance(data, Rows):
        return data
    if isinstance(data, (str, os.PathLike)):
        return _from_path(os.fspath(data), text_unit, cache)
    if isinstance(data, Sequence):
        if len(data) and all(isinstance(item, os.PathLike) for item in data):
            return _chain([os.fspath(item) for item in data], "several files", text_unit, cache)
        return MemoryRows(data)
    if hasattr(data, "with_format") and hasattr(data, "column_names"):
        from brimful.sources.huggingface import HuggingFaceRows

        return HuggingFaceRows(data)
    raise SettingsError(f"a source is a path, a list of rows or a datasets.Dataset, not {type(data).__name__}")


def _from_path(path: str, text_unit: TextUnit, cache: Path | None) -> Rows:
    if is_remote(path):
        return _chain([path], path, text_unit, cache)
    if os.path.isdir(path):
        return _from_directory(path, text_unit, cache)
    if not os.path.exists(path) and glob.has_magic(path):
        found = sorted(name for name in glob.glob(path, recursive=True) if os.path.isfile(name))
        if not found:
            raise SourceNotFoundError(f"{path}: no file matches")
        return _chain(found, path, text_unit, cache)
    if not os.path.exists(path):
        raise SourceNotFoundError(f"{path}: no such file or directory")
    return _chain([path], path, text_unit, cache)


def _from_directory(path: str, text_unit: TextUnit, cache: Path | None) -> Rows:
    if os.path.isfile(os.path.join(path, "dataset_info.json")) or os.path.isfile(
        os.path.join(path, "dataset_dict.json")
    ):
        from brimful.sources.huggingface import HuggingFaceRows

        return HuggingFaceRows.from_directory(path)
    names = sorted(
        os.path.join(folder, name)
        for folder, folders, files in os.walk(path)
        for name in files
        if not name.startswith(".") and _kind(name) is not None
    )
    if not names:
        raise SourceNotFoundError(f"{path}: no file in it is JSON lines, JSON, Parquet or text")
    kinds = {_kind(name) for name in names}
    if len(kinds) > 1:
        raise SettingsError(
            f"{path} mixes files of several kinds ({', '.join(sorted(str(kind) for kind in kinds))}): name some by a "
            f"pattern, such as '{path}/*.jsonl'"
        )
    if kinds == {"text"} and text_unit in ("auto", "file"):
        return TextFiles(names, path)
    return _chain(names, path, text_unit, cache)


def _chain(paths: Sequence[str], title: str, text_unit: TextUnit, cache: Path | None) -> Rows:
    return ChainedRows([_from_file(path, text_unit, cache) for path in paths], title)


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


def _from_file(path: str, text_unit: TextUnit, cache: Path | None) -> Rows:
    kind = _kind(path)
    if kind == "parquet" and is_remote(path):
        raise SourceError(f"{path}: Parquet is read in place, which takes a local file: copy it here first")
    if kind == "parquet":
        return ParquetRows(path)
    if kind == "array" and begins_like_array(path):
        return JsonArray(unpacked_json_array(path, cache), cache=cache, title=path)
    if kind == "text" and text_unit == "file" and not is_remote(path):
        return TextFiles([path], path)
    packed = is_remote(path) or path.lower().endswith(_PACKED)
    lines = TextLines if kind == "text" else JsonLines
    return lines(unpacked_lines(path, cache) if packed else path, cache=cache, title=path)
