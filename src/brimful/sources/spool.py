"""Rows that can be read only once (a pipe, a generator, a stream of ``datasets``), kept so that they can be read by index.

They are copied to the cache directory as JSON lines under a name made of their content: the same rows piped in again
are the same data set, and a job that was killed goes on.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

import xxhash

from brimful.cache import cache_dir
from brimful.errors import SourceError
from brimful.sources.lines import JsonArray, JsonLines
from brimful.sources.rows import Rows
from brimful.sources.unpack import begins_like_array, unpacked_json_array

__all__ = ["rows_of_iterable", "rows_of_pipe"]

_CHUNK = 1 << 20


def rows_of_pipe(pipe: IO[bytes], cache: Path | None) -> Rows:
    """JSON lines, or one JSON array, from standard input."""
    path = _spooled(lambda put: _copy(pipe, put), cache)
    title = "standard input"
    if begins_like_array(path):
        return JsonArray(unpacked_json_array(path, cache), cache=cache, title=title)
    return JsonLines(path, cache=cache, title=title)


def rows_of_iterable(rows: Iterable[Any], title: str, cache: Path | None) -> Rows:
    """The rows of an iterable, in its order.

    Raises:
        SourceError: a row holds something that JSON has no word for.
    """

    def write(put: Callable[[bytes], Any]) -> None:
        for number, row in enumerate(rows):
            try:
                line = json.dumps(row, ensure_ascii=False, default=_plain)
            except (TypeError, ValueError, RecursionError) as error:
                raise SourceError(f"{title}: row {number} cannot be kept as JSON: {error}") from error
            put(line.encode("utf-8", "surrogatepass") + b"\n")

    return JsonLines(_spooled(write, cache), cache=cache, title=title)


def _spooled(write: Callable[[Callable[[bytes], Any]], None], cache: Path | None) -> str:
    """Path of a file with what ``write`` puts, named by its content."""
    folder = (cache or cache_dir()) / "spooled"
    folder.mkdir(parents=True, exist_ok=True)
    hasher = xxhash.xxh3_128()
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:

            def put(data: bytes) -> None:
                hasher.update(data)
                file.write(data)

            write(put)
        target = folder / f"{hasher.hexdigest()}.jsonl"
        if target.exists():  # keep its times: indexes were made with them
            os.unlink(temporary)
        else:
            os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return str(target)


def _copy(pipe: IO[bytes], put: Callable[[bytes], Any]) -> None:
    while chunk := pipe.read(_CHUNK):
        put(chunk)


def _plain(value: Any) -> Any:
    """Arrays, tensors and their numbers as JSON has them."""
    for name in ("tolist", "item"):
        convert = getattr(value, name, None)
        if callable(convert):
            return convert()
    raise TypeError(f"{type(value).__name__} is no JSON")
