"""Plain copies, in the cache, of rows that cannot be read by index where they are.

Files that are compressed, remote or one JSON array are copied under a name made from their place
and the time of their last change; a newer copy of the same original replaces the older one. Rows
that can be read only once (a pipe, a generator, a stream of ``datasets``) are copied under a name
made from their content: the same rows piped in again are thus the same data set, and a killed job
continues. One process of many makes a copy.
"""

import contextlib
import json
import os
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, Any

import xxhash

from brimful.base.atomic_file import atomic_file, full_device_explained, locked_sibling
from brimful.base.blobs import is_remote
from brimful.base.fingerprint import fingerprint_of
from brimful.base.locks import cache_dir, cached, exclusive
from brimful.base.wings import REMOTE_FILES, loaded
from brimful.errors import SourceError, SourceNotFoundError
from brimful.sources.json_rows import array_elements
from brimful.sources.lines import JsonArray, JsonLines
from brimful.sources.rows import MAX_ROW_BYTES, Rows
from brimful.sources.stamp import changed

_PIECE = 1 << 20
_CODECS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2"}


def is_json_array(path: str) -> bool:
    """Return true if a .json file, compressed or not, holds an array; many such files hold JSON
    lines.
    """
    with _opened(path) as source:
        head: bytes = source.read(4096)
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def unpacked(path: str, cache: Path | None = None, *, is_array: bool = False) -> str:
    """Return the path of a plain copy of a compressed or remote file of lines, or of a copy of a
    JSON array with one line for each element.
    """
    origin, version = _identity(path)

    def write(file: IO[bytes]) -> None:
        with _opened(path) as source:
            if is_array:
                for row in array_elements(source, path):
                    line = json.dumps(row, ensure_ascii=False)
                    file.write(line.encode("utf-8", "surrogatepass") + b"\n")
            else:
                _copy_lines(source, file)
        # Raised before the copy gets its name: it may hold bytes of two versions.
        if _identity(path) != (origin, version):
            raise changed(path)

    content = "array" if is_array else "lines"
    return str(kept_copy("unpacked", [content, origin], version, cache, write))


def _copy_lines(source: IO[bytes], target: IO[bytes]) -> None:
    """Copy lines in pieces; of a line above ``MAX_ROW_BYTES``, only one byte more than that."""
    room = MAX_ROW_BYTES + 1  # bytes left for the line being copied
    while piece := source.read(_PIECE):
        end = piece.find(b"\n")
        if end < 0:
            target.write(piece[:room])
            room = max(room - len(piece), 0)
            continue
        # Only a line begun in an earlier piece can become too long; lines inside a piece are short.
        target.write(piece[: min(room, end)])
        target.write(memoryview(piece)[end:])
        room = MAX_ROW_BYTES + 1 - (len(piece) - piece.rfind(b"\n") - 1)


def kept_copy(
    folder_name: str,
    origin: Any,
    version: Any,
    cache: Path | None,
    write: Callable[[IO[bytes]], None],
) -> Path:
    """Return the path of a copy in the cache; if it does not exist yet, one process of many writes
    it.

    Args:
        folder_name: folder of the cache.
        origin: identity of the original.
        version: value that changes whenever the copy would.
        cache: directory of the cache; None for the default.
        write: function that writes the copy into an open file.
    """
    stem = f"{fingerprint_of(origin)[:16]}-"
    name = f"{stem}{fingerprint_of(version)[:16]}.jsonl"
    target = cached((cache or cache_dir()) / folder_name / name)
    folder = target.parent
    if target.exists():
        return target
    with exclusive(folder / f"{stem}lock"):
        # Under the lock no other process writes here: temporary files are left over from killed
        # processes.
        for temporary in folder.glob(f".{stem}*.tmp"):
            _remove(temporary)
        if not target.exists():
            with atomic_file(target) as file:
                write(file)
            for path in folder.glob(f"{stem}*.jsonl"):
                if path != target:
                    _remove(path)
    return target


def _remove(path: Path) -> None:
    """Remove a file, unless it belongs to another user."""
    with contextlib.suppress(OSError):
        path.unlink()


def _identity(path: str) -> tuple[str, Any]:
    """Return the place of the original, and a value that changes when the original changes."""
    if is_remote(path):
        return path, loaded(REMOTE_FILES)(path).version()
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
    except OSError as error:
        raise SourceNotFoundError(f"{path}: no such file") from error
    return real, [status.st_size, status.st_mtime_ns, status.st_ctime_ns]


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    """Open the unpacked bytes of a file, local or remote, compressed or not."""
    import pyarrow as pa

    codec = _CODECS.get(os.path.splitext(path)[1].lower())
    with contextlib.ExitStack() as stack:
        if is_remote(path):
            raw: Any = stack.enter_context(loaded(REMOTE_FILES)(path).open())
        else:
            raw = stack.enter_context(open(path, "rb"))
        try:
            yield pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec) if codec else raw
        except (OSError, pa.ArrowException) as error:
            if codec is None or (isinstance(error, OSError) and error.errno is not None):
                raise
            detail = str(error).split("\n", 1)[0]
            raise SourceError(f"{path} cannot be unpacked as {codec}: {detail}") from error


def rows_of_pipe(pipe: IO[bytes], cache: Path | None) -> Rows:
    """Copy JSON lines, or one JSON array, from standard input."""
    path = _spool(iter(partial(pipe.read, _PIECE), b""), cache)
    opener: type[JsonLines] = JsonLines
    if is_json_array(path):
        path, opener = unpacked(path, cache, is_array=True), JsonArray
    return opener(path, cache=cache, title="standard input")


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
    spool = cached(folder / "spool")
    spool.parent.mkdir(parents=True, exist_ok=True)
    hasher = xxhash.xxh3_128()
    temporary, file = locked_sibling(spool)
    try:
        with full_device_explained(spool), file:
            for piece in pieces:
                hasher.update(piece)
                file.write(piece)
        target = cached(folder / f"{hasher.hexdigest()}.jsonl")
        # An earlier copy keeps its times: its index was built with them.
        if not target.exists():
            os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return str(target)


def _to_json(value: Any) -> Any:
    """Convert an array, a tensor or one of their numbers to a list or number of Python."""
    for name in ("tolist", "item"):
        convert = getattr(value, name, None)
        if callable(convert):
            return convert()
    raise TypeError(f"{type(value).__name__} is not JSON")
