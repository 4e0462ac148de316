"""Plain copies of files that cannot be read by index as they are: compressed, remote, or one JSON array.

The copy lies in the cache directory under a name made of where the original lies and when it changed. One
process of many makes it; a newer copy of the same original replaces the older one.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any

from brimful.blobs import atomic_file
from brimful.cache import cache_dir, exclusive
from brimful.errors import SourceError, SourceNotFoundError
from brimful.fingerprint import fingerprint_of
from brimful.remote import filesystem_of, is_remote, telling
from brimful.sources.json_array import array_elements
from brimful.sources.rows import MAX_ROW_BYTES

__all__ = ["begins_like_array", "unpacked_json_array", "unpacked_lines"]

_PIECE = 1 << 20
_CODECS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2"}


def begins_like_array(path: str) -> bool:
    """Whether a .json file, compressed or not, holds an array; many hold JSON lines under that name."""
    with _opened(path) as source:
        head: bytes = source.read(4096)
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def unpacked_lines(path: str, cache: Path | None = None) -> str:
    """Path of a plain copy of a compressed or remote file of lines."""

    def copy(target: IO[bytes]) -> None:
        with _opened(path) as source:
            _copy_lines(source, target)

    return _copied(path, cache, "lines", copy)


def _copy_lines(source: IO[bytes], target: IO[bytes]) -> None:
    """Copy in pieces. Of a line that no row may be as long as, only so much is written that this can be seen."""
    room = MAX_ROW_BYTES + 1  # of the line that is being copied
    while piece := source.read(_PIECE):
        end = piece.find(b"\n")
        if end < 0:
            target.write(piece[:room])
            room = max(room - len(piece), 0)
            continue
        target.write(piece[: min(room, end)])
        target.write(memoryview(piece)[end:])
        room = MAX_ROW_BYTES + 1 - (len(piece) - piece.rfind(b"\n") - 1)


def unpacked_json_array(path: str, cache: Path | None = None) -> str:
    """Path of a copy with one line for each element of a JSON array."""

    def copy(target: IO[bytes]) -> None:
        with _opened(path) as source:
            for row in array_elements(source, path):
                target.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")

    return _copied(path, cache, "array", copy)


def _copied(path: str, cache: Path | None, kind: str, copy: Callable[[IO[bytes]], None]) -> str:
    origin, stamp = _identity(path)
    folder = (cache or cache_dir()) / "unpacked"
    prefix = f"{fingerprint_of([kind, origin])[:16]}-"
    target = folder / f"{prefix}{fingerprint_of(stamp)[:16]}.jsonl"
    if not target.exists():
        with exclusive(folder / f"{prefix}lock"):
            for left in folder.glob(f".{prefix}*.tmp"):  # of a process that was killed: nobody else writes here
                left.unlink(missing_ok=True)
            if not target.exists():
                with atomic_file(target) as file:
                    copy(file)
                    if _identity(path) != (origin, stamp):
                        raise SourceError(f"{path} changed while it was being read: run the command again")
                for older in folder.glob(f"{prefix}*.jsonl"):
                    if older != target:
                        older.unlink(missing_ok=True)
    return str(target)


def _identity(path: str) -> tuple[str, Any]:
    """Where the original lies, and what changes when it changes."""
    if is_remote(path):
        filesystem, inner = filesystem_of(path)
        with telling(path):
            return path, str(filesystem.ukey(inner))
    real = os.path.realpath(path)
    try:
        status = os.stat(real)
    except OSError as error:
        raise SourceNotFoundError(f"{path}: no such file") from error
    return real, [status.st_size, status.st_mtime_ns]


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Any]:
    """The unpacked bytes of a file, local or remote, compressed or not."""
    import pyarrow as pa

    codec = _CODECS.get(os.path.splitext(path)[1].lower())
    with contextlib.ExitStack() as stack:
        if is_remote(path):
            filesystem, inner = filesystem_of(path)
            with telling(path):
                raw: Any = stack.enter_context(filesystem.open(inner, "rb"))
        else:
            raw = stack.enter_context(open(path, "rb"))
        try:
            yield pa.CompressedInputStream(pa.PythonFile(raw, mode="r"), codec) if codec else raw
        except (OSError, pa.ArrowException) as error:
            if codec is None or (isinstance(error, OSError) and error.errno is not None):
                raise
            detail = str(error).split("\n", 1)[0]
            raise SourceError(f"{path} cannot be unpacked as {codec}: {detail}") from error
