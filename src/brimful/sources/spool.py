"""Copies, read by index, of rows that can be read only once (a pipe, a generator, a stream of ``datasets``).

They are copied to the cache directory as JSON lines, under a name made from their content. The same rows piped in again
are thus the same data set, and a killed job continues.
"""

import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import xxhash

from brimful.cache import cache_dir
from brimful.errors import SourceError
from brimful.sources.lines import JsonArray, JsonLines
from brimful.sources.rows import Rows
from brimful.sources.unpack import begins_like_array, unpacked_json_array

_CHUNK = 1 << 20


def rows_of_pipe(pipe: IO[bytes], cache: Path | None) -> Rows:
    """Copy JSON lines, or one JSON array, from standard input."""
    path = _spool(iter(partial(pipe.read, _CHUNK), b""), cache)
    title = "standard input"
    if begins_like_array(path):
        return JsonArray(unpacked_json_array(path, cache), cache=cache, title=title)
    return JsonLines(path, cache=cache, title=title)


def rows_of_iterable(rows: Iterable[Any], title: str, cache: Path | None) -> Rows:
    """Copy the rows of an iterable, in its order.

    Raises:
        SourceError: a row holds something that JSON cannot express.
    """
    return JsonLines(_spool(_json_lines(rows, title), cache), cache=cache, title=title)


def _json_lines(rows: Iterable[Any], title: str) -> Iterator[bytes]:
    for index, row in enumerate(rows):
        try:
            line = json.dumps(row, ensure_ascii=False, default=_to_json)
        except (TypeError, ValueError, RecursionError) as error:
            raise SourceError(f"{title}: row {index} cannot be kept as JSON: {error}") from error
        yield line.encode("utf-8", "surrogatepass") + b"\n"


def _spool(pieces: Iterable[bytes], cache: Path | None) -> str:
    """Write the pieces to a file named by its content; return its path."""
    folder = (cache or cache_dir()) / "spooled"
    folder.mkdir(parents=True, exist_ok=True)
    hasher = xxhash.xxh3_128()
    handle, temporary = tempfile.mkstemp(dir=folder, suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            for piece in pieces:
                hasher.update(piece)
                file.write(piece)
        target = folder / f"{hasher.hexdigest()}.jsonl"
        # An earlier copy keeps its times: its index was built with them.
        if target.exists():
            os.unlink(temporary)
        else:
            os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return str(target)


def _to_json(value: Any) -> Any:
    """Convert an array, a tensor or one of their numbers to a list or number of Python."""
    for name in ("tolist", "item"):
        convert = getattr(value, name, None)
        if callable(convert):
            return convert()
    raise TypeError(f"{type(value).__name__} is not JSON")
