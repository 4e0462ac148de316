"""Fingerprints of files that take a reading of all their bytes: kept in the cache until somebody writes to the files."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from brimful.cache import cache_dir, exclusive
from brimful.errors import BrimfulError
from brimful.fingerprint import fingerprint_of
from brimful.sources.stamp import Stamp
from brimful.tables import open_table, write_table
from brimful.typing import Fingerprint

_SMALL_BYTES = 1 << 20
"""Bytes of files that are read in less time than it takes to keep what was read."""


def kept_digests(
    stamps: Mapping[str, Stamp], version: Any, cache: Path | None, make: Callable[[], list[Fingerprint]]
) -> list[Fingerprint]:
    """Return the fingerprints that ``make`` takes of files; of many processes one makes them, once for each state of the files.

    Args:
        stamps: of the files by path, from before they are read.
        version: what else decides the fingerprints, and what they are of.
        cache: directory of the cache; None for the usual one.
        make: reads the files, and raises if one of them changes meanwhile.
    """
    if sum(each.size for each in stamps.values()) < _SMALL_BYTES:
        return make()
    path = (
        (cache or cache_dir())
        / "indexes"
        / f"{fingerprint_of([version, *map(os.path.abspath, stamps)])[:16]}.digests.arrow"
    )
    state = fingerprint_of([[each.size, each.mtime_ns, each.ctime_ns, each.inode] for each in stamps.values()])
    with exclusive(path):
        with contextlib.suppress(FileNotFoundError, BrimfulError):
            kept = open_table(path)
            if kept.checksummed and kept.description.get("state") == state:
                return list(kept.description["digests"])
        digests = make()
        write_table(path, {}, {"state": state, "digests": digests})
        return digests
