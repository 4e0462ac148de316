"""A plan as one file: the only I/O in this package.

Row ``i`` is pack ``i`` with its segments as lists. If samples were dropped, one more row with ``kind`` 1 names them; if
samples were truncated, another row with ``kind`` 2 names them, with their full lengths. ``starts`` is omitted if every
segment begins at 0.
"""

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from brimful.base.tables import Ragged, open_table, write_table
from brimful.base.typing import Lengths
from brimful.errors import CorruptFileError
from brimful.plan.policies.overflow import Truncated
from brimful.plan.saved.planned_packs import PlannedPacks

_KIND = "plan"
_PLAIN, _WITH_TRUNCATED = 1, 2
"""Versions. Only the second has a row of truncated samples; without this row, the first version is written."""
_PACK, _DROPPED, _TRUNCATED = 0, 1, 2


def save_plan(path: str | os.PathLike[str], packs: PlannedPacks, description: Mapping[str, Any]) -> None:
    """Write packs and their description, atomically."""
    offsets, sample_ids, starts, lengths, dropped_ids = packs.arrays
    truncated = packs.truncated
    kind = np.full(packs.num_packs, _PACK, dtype=np.int8)
    further_rows = [(_DROPPED, dropped_ids, np.zeros(len(dropped_ids), dtype=np.int32))]
    version = _PLAIN
    if len(truncated):
        further_rows.append((_TRUNCATED, truncated.sample_ids, truncated.lengths))
        description = {**description, "truncated_fingerprint": truncated.fingerprint}
        version = _WITH_TRUNCATED
    for row_kind, ids, ids_lengths in further_rows:
        if len(ids):
            kind = np.append(kind, np.int8(row_kind))
            offsets = np.append(offsets, offsets[-1] + len(ids))
            sample_ids = np.concatenate([sample_ids, ids.astype(sample_ids.dtype)])
            starts = np.concatenate([starts, np.zeros(len(ids), dtype=np.int32)])
            lengths = np.concatenate([lengths, ids_lengths])
    columns: dict[str, Any] = {
        "kind": kind,
        "sample_ids": Ragged(sample_ids, offsets),
        "lengths": Ragged(lengths, offsets),
    }
    if starts.any():
        columns["starts"] = Ragged(starts, offsets)
    write_table(path, columns, {"kind": _KIND, "version": version, "num_packs": packs.num_packs, **description})


def load_plan(path: str | os.PathLike[str]) -> tuple[dict[str, Any], Lengths, Truncated, dict[str, Any]]:
    """Return the arrays of a plan as views of its file, lengths, truncated samples and description.

    The arrays have their names in ``Plan`` as keys.
    """
    table = open_table(path)
    meta = table.description
    name = os.fspath(path)
    if meta.get("kind") != _KIND:
        raise CorruptFileError(f"{name} is a {meta.get('kind', 'file')} and not a plan")
    if meta.get("version") not in (_PLAIN, _WITH_TRUNCATED):
        raise CorruptFileError(
            f"{name} has plan version {meta.get('version')}; this brimful reads {_PLAIN} and {_WITH_TRUNCATED}"
        )
    # Opens in milliseconds at any size: the arrays are compared with the fingerprint when they are used.
    ids, lengths = table.ragged("sample_ids", checked=False), table.ragged("lengths", checked=False)
    offsets = ids.offsets[: meta["num_packs"] + 1]
    num_segments = int(offsets[-1])
    # With too large a number, arrays would be read until memory runs out, before their fingerprint is checked.
    if len(offsets) != meta["num_packs"] + 1 or not 0 <= num_segments <= len(ids.values):
        raise CorruptFileError(
            f"{name}: the plan is damaged: its packs have {num_segments:,} segments and the file {len(ids.values):,}"
        )
    starts = np.broadcast_to(np.zeros(1, dtype=np.int32), (num_segments,))
    if "starts" in table:
        starts = table.ragged("starts", checked=False).values[:num_segments]
    # After the packs come the row of dropped samples and the row of truncated samples, each only if needed.
    kind = table.flat("kind")
    last_row = len(kind) - 1
    truncated = Truncated.none()
    if meta["version"] == _WITH_TRUNCATED:
        if kind[last_row] != _TRUNCATED:
            raise CorruptFileError(f"{name}: its last row does not name the truncated samples")
        truncated = Truncated(ids.row(last_row).astype(np.int64), lengths.row(last_row), meta["truncated_fingerprint"])
        last_row -= 1
    dropped_ids = ids.row(last_row) if last_row >= meta["num_packs"] else ids.values[:0]
    arrays = {
        "offsets": offsets,
        "sample_ids": ids.values[:num_segments],
        "starts": starts,
        "dropped_ids": dropped_ids.astype(np.int64),
    }
    return arrays, lengths.values[:num_segments], truncated, meta
