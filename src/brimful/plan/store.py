"""A plan as one file: the only I/O in this package.

Row ``i`` is pack ``i`` with its segments as lists; where samples were dropped, one more row names them, with
``kind`` 1. ``starts`` is left out where every segment begins at 0.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from brimful.columns import Ragged, open_columns, write_columns
from brimful.errors import CorruptFileError
from brimful.typing import AnyIntArray, Int64Array, Lengths, Offsets

__all__ = ["load_plan", "save_plan"]

_KIND, _VERSION = "plan", 1
_PACK, _DROPPED = 0, 1


def save_plan(
    path: str | os.PathLike[str],
    offsets: Offsets,
    sample_ids: AnyIntArray,
    starts: Lengths,
    lengths: Lengths,
    dropped_ids: Int64Array,
    description: Mapping[str, Any],
) -> None:
    """Write the arrays of a plan, atomically."""
    num_packs, num_dropped = len(offsets) - 1, len(dropped_ids)
    kind = np.full(num_packs, _PACK, dtype=np.int8)
    if num_dropped:
        kind = np.append(kind, np.int8(_DROPPED))
        offsets = np.append(offsets, offsets[-1] + num_dropped)
        sample_ids = np.concatenate([sample_ids, dropped_ids.astype(sample_ids.dtype)])
        nothing = np.zeros(num_dropped, dtype=np.int32)
        starts, lengths = np.concatenate([starts, nothing]), np.concatenate([lengths, nothing])
    columns: dict[str, Any] = {
        "kind": kind,
        "sample_ids": Ragged(sample_ids, offsets),
        "lengths": Ragged(lengths, offsets),
    }
    if starts.any():
        columns["starts"] = Ragged(starts, offsets)
    write_columns(path, columns, {"kind": _KIND, "version": _VERSION, "num_packs": num_packs, **description})


def load_plan(path: str | os.PathLike[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The arrays of a plan as views of its file, by their names in ``Plan``, and its description."""
    columns = open_columns(path)
    meta = columns.description
    name = os.fspath(path)
    if meta.get("kind") != _KIND:
        raise CorruptFileError(f"{name} is a {meta.get('kind', 'file')} and no plan")
    if meta.get("version") != _VERSION:
        raise CorruptFileError(f"{name} has plan version {meta.get('version')}; this brimful reads {_VERSION}")
    # Opened in milliseconds, whatever the size: the arrays are held against the fingerprint when they are used.
    ids, lengths = columns.ragged("sample_ids", checked=False), columns.ragged("lengths", checked=False)
    offsets = ids.offsets[: meta["num_packs"] + 1]
    end = int(offsets[-1])
    if "starts" in columns:
        starts = columns.ragged("starts", checked=False).values[:end]
    else:
        starts = np.broadcast_to(np.zeros(1, dtype=np.int32), (end,))
    return {
        "offsets": offsets,
        "sample_ids": ids.values[:end],
        "starts": starts,
        "lengths": lengths.values[:end],
        "dropped_ids": ids.values[end:].astype(np.int64),
    }, meta
