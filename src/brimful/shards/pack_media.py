"""Media of a pack in a shard: JSON of their places among tokens, and of where their bytes are."""

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from brimful.errors import CorruptFileError
from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.media.placed_json import placed_from_values, placed_to_values
from brimful.optional import fast_json_library


@dataclass(frozen=True, slots=True)
class StoredAt:
    """Place of a medium's bytes in a store.

    Attributes:
        shard: number of the shard whose container holds them.
        offset: first byte in the container.
        size: bytes.
    """

    shard: int
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class PackMedium:
    """One medium of a pack that is to be written: a reference to its file, or a place in the store.

    Attributes:
        item: as it is placed in the pack.
        stored: None for a reference; its ``medium`` then has a path and a size.
    """

    item: PlacedMedium
    stored: StoredAt | None = None


_KINDS = {kind.value: kind for kind in MediaKind}

Resolve = Callable[[MediaKind, str, dict[str, Any]], Medium]
"""Function from kind, name and the values of JSON to the medium."""


def media_to_json(media: Sequence[PackMedium], root: str = "") -> bytes:
    """Return the media of a pack as JSON.

    Args:
        media: in the order of their tokens.
        root: directory that the paths of files in it are relative to; empty for absolute ones.

    >>> picture = PlacedMedium(Medium(MediaKind.IMAGE, "a", "/data/a", size=3), start=0, length=1, num_tokens=1)
    >>> b'"path":"a","offset":0,"size":3' in media_to_json([PackMedium(picture)], "/data")
    True
    """
    rows = [{**placed_to_values(medium.item), **_place(medium, root)} for medium in media]
    # A name of a file need not be Unicode: half of a surrogate pair stands for a byte that is none.
    return json.dumps(rows, ensure_ascii=True, separators=(",", ":")).encode()


def _place(medium: PackMedium, root: str) -> dict[str, Any]:
    stored, source = medium.stored, medium.item.medium
    if stored is not None:
        return {"container": stored.shard, "offset": stored.offset, "size": stored.size}
    assert source.path, "bytes that are in no file have to be stored"
    assert source.size is not None, "a reference without a size would hide that its file was cut short"
    return {"path": relative_path(source.path, root), "offset": source.offset, "size": source.size}


def relative_path(path: str, root: str) -> str:
    """Return a path below a root relative to it, with slashes; any other path as it is.

    >>> relative_path("/data/pictures/a.png", "/data"), relative_path("/database/a.png", "/data")
    ('pictures/a.png', '/database/a.png')
    """
    prefix = root.rstrip(os.sep) + os.sep
    return path[len(prefix) :].replace(os.sep, "/") if root and path.startswith(prefix) else path


def media_from_json(text: bytes, resolve: Resolve) -> tuple[PlacedMedium, ...]:
    """Return the media of a pack; the other way round.

    Raises:
        CorruptFileError: no such JSON, or a file of the store that is not whole.
    """
    try:
        return tuple(_from_values(values, resolve) for values in _parse(text))
    except (ValueError, TypeError, KeyError, IndexError) as error:
        if isinstance(error, CorruptFileError):
            raise
        raise CorruptFileError(f"the media of a pack cannot be read: {error}") from error


def _parse(text: bytes) -> Any:
    """Parse JSON, by ``orjson`` where it is installed: every pack that is served comes through here."""
    fast_loads = _fast_loads()
    if fast_loads is not None:
        try:
            return fast_loads(text)
        except ValueError:
            pass  # half of a surrogate pair in a name, which the standard library takes
    return json.loads(text)


def _fast_loads() -> Callable[[bytes], Any] | None:
    """Return the function of ``orjson``; None if it is not installed."""
    library = fast_json_library()
    return None if library is None else library.loads


def _from_values(values: dict[str, Any], resolve: Resolve) -> PlacedMedium:
    medium = resolve(_KINDS[values["kind"]], values["name"], values)
    return placed_from_values(values, medium)


def from_row_blobs(blobs: Sequence[bytes]) -> Resolve:
    """Return how media are resolved in shards of version 2: absolute paths, or bytes in the row of the pack."""

    def resolve(kind: MediaKind, name: str, place: dict[str, Any]) -> Medium:
        if "blob" in place:
            return Medium(kind, name, data=blobs[place["blob"]])
        return Medium(kind, name, place["path"], place["offset"], place["size"])

    return resolve
