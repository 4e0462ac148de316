"""Plain copies of files that cannot be read by index: compressed, remote, or one JSON array.

The copy is in the cache directory, under a name made from the original's place and the time of its last change. One
process of many makes it; a newer copy of the same original replaces the older one.
"""

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
from brimful.sources.stamp import changed

_PIECE = 1 << 20
_CODECS = {".gz": "gzip", ".gzip": "gzip", ".zst": "zstd", ".zstd": "zstd", ".bz2": "bz2"}


def begins_like_array(path: str) -> bool:
    """Return true if a .json file, compressed or not, holds an array; many such files hold JSON lines."""
    with _opened(path) as source:
        head: bytes = source.read(4096)
    return head.lstrip(b"\xef\xbb\xbf \t\r\n").startswith(b"[")


def unpacked_lines(path: str, cache: Path | None = None) -> str:
    """Return the path of a plain copy of a compressed or remote file of lines."""
    return _unpacked(path, cache, "lines", _copy_lines)


def unpacked_json_array(path: str, cache: Path | None = None) -> str:
    """Return the path of a copy with one line for each element of a JSON array."""

    def copy_elements(source: IO[bytes], target: IO[bytes]) -> None:
        for row in array_elements(source, path):
            target.write(json.dumps(row, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")

    return _unpacked(path, cache, "array", copy_elements)


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


def _unpacked(path: str, cache: Path | None, kind: str, copy: Callable[[IO[bytes], IO[bytes]], None]) -> str:
    """Return the path of the copy; ``copy`` makes it if none exists for the current file."""
    origin, version = _identity(path)
    folder = (cache or cache_dir()) / "unpacked"
    prefix = f"{fingerprint_of([kind, origin])[:16]}-"
    target = folder / f"{prefix}{fingerprint_of(version)[:16]}.jsonl"
    if target.exists():
        return str(target)
    with exclusive(folder / f"{prefix}lock"):
        # Under the lock no other process writes here: temporary files are left over from killed processes.
        for temporary in folder.glob(f".{prefix}*.tmp"):
            temporary.unlink(missing_ok=True)
        if not target.exists():
            with atomic_file(target) as file:
                with _opened(path) as source:
                    copy(source, file)
                # Raised before the copy gets its name: it may hold bytes of two versions.
                if _identity(path) != (origin, version):
                    raise changed(path)
            for older in folder.glob(f"{prefix}*.jsonl"):
                if older != target:
                    older.unlink(missing_ok=True)
    return str(target)


def _identity(path: str) -> tuple[str, Any]:
    """Return the place of the original, and a value that changes when the original changes."""
    if is_remote(path):
        filesystem, inner = filesystem_of(path)
        with telling(path):
            return path, str(filesystem.ukey(inner))
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
