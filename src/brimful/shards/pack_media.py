"""Media of a pack to write: their places among tokens, and the places of their bytes."""

import os
from dataclasses import dataclass

from brimful.media import PlacedMedium


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
    """One medium of a pack to write: a reference to its file, or a place in the store.

    Attributes:
        item: the medium as placed in the pack.
        stored: None for a reference; its ``medium`` then has a path and a size.
    """

    item: PlacedMedium
    stored: StoredAt | None = None


def relative_path(path: str, root: str) -> str:
    """Return a path below a root relative to it, with slashes; any other path unchanged.

    >>> relative_path("/data/pictures/a.png", "/data"), relative_path("/database/a.png", "/data")
    ('pictures/a.png', '/database/a.png')
    """
    prefix = root.rstrip(os.sep) + os.sep
    return path[len(prefix) :].replace(os.sep, "/") if root and path.startswith(prefix) else path
