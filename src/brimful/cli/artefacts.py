"""Recognition of files that brimful wrote, and the command for each kind."""

import os
from collections.abc import Iterable
from typing import Any

from brimful.errors import BrimfulError, SettingsError
from brimful.measure import LengthTable
from brimful.plan import Plan
from brimful.remote import is_remote
from brimful.sources.directory import is_pack_store
from brimful.tables import open_table

LENGTHS, PLAN, STORE = "length_table", "plan", "store"

_KINDS = {LENGTHS: ("a length table", "plan"), PLAN: ("a plan", "write"), STORE: ("a pack store", "inspect")}
"""Title of each kind, and the command that takes it."""


def kind_of(path: str) -> str | None:
    """Return ``LENGTHS``, ``PLAN`` or ``STORE``; None for anything that brimful did not write."""
    if is_remote(path):
        return None
    if os.path.isdir(path):
        return STORE if is_pack_store(path) else None
    if not os.path.isfile(path):
        return None
    try:
        # Any file may be at this path: one that is not a table of brimful is not an error.
        kind = open_table(path).description.get("kind")
    except (BrimfulError, OSError):
        return None
    return str(kind) if kind in _KINDS else None


def plan_in(directory: str) -> Plan | None:
    """Open the plan in a directory; return None without a plan."""
    path = os.path.join(directory, "plan.arrow")
    return Plan.open(path) if os.path.exists(path) else None


def lengths_in(directory: str) -> LengthTable | None:
    """Open the length table in a directory; return None without a table."""
    path = os.path.join(directory, "lengths.arrow")
    return LengthTable.open(path) if os.path.exists(path) else None


def lengths_as_dict(table: LengthTable) -> dict[str, Any]:
    """Return a length table for JSON."""
    return {
        "kind": LENGTHS,
        "path": table.path,
        "samples": len(table),
        "tokens": table.total_tokens,
        "budgets": list(table.budgets),
        "targets": None if table.targets is None else table.targets.total,
        "rejected": len(table.rejected_ids),
        "source": table.provenance.get("source"),
        "fingerprint": table.fingerprint,
    }


def plan_as_dict(plan: Plan) -> dict[str, Any]:
    """Return a plan for JSON."""
    return {
        "kind": PLAN,
        "path": plan.path,
        "num_packs": plan.num_packs,
        "capacity": plan.capacity,
        "fill_ratio": plan.fill_ratio,
        "lower_bound": plan.bound,
        "settings": plan.record,
        "fingerprint": plan.fingerprint,
        **plan.ledger.as_dict(),
    }


def mismatch(path: str, expected: str) -> str:
    """Describe a path that is not what a command expects: ``l.arrow is a length table, not a plan``."""
    kind = kind_of(path)
    return f"{path} is {_KINDS[kind][0]}, not {expected}" if kind is not None else f"{path} is not {expected}"


def refuse_as_data(paths: Iterable[str]) -> None:
    """Refuse paths that brimful wrote as data.

    Raises:
        SettingsError: names the command that takes the path.
    """
    for path in paths:
        kind = kind_of(path)
        if kind is not None:
            raise SettingsError(f"{mismatch(path, 'data')}: `brimful {_KINDS[kind][1]}` takes it")
