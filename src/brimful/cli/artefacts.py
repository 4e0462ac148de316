"""Files that commands open: what brimful wrote, and numbers in ``.npy`` and ``.npz``
files.
"""

import os
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

import click
import numpy as np

from brimful.base.blobs import is_remote
from brimful.base.tables import open_table
from brimful.base.typing import TokenIds
from brimful.cli.program import in_flags
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import BrimfulError, InvalidLengthsError, SettingsError, SourceNotFoundError
from brimful.measure import LengthTable
from brimful.plan import Plan
from brimful.serve import PackStore
from brimful.sources.directory import is_pack_store
from brimful.trees.prefixes import prefixes_of, sharing_of

LENGTHS, PLAN, STORE = "length_table", "plan", "store"

_ARTEFACTS = {
    LENGTHS: ("a length table", "plan"),
    PLAN: ("a plan", "write"),
    STORE: ("a pack store", "inspect"),
}
"""Title of each kind, and the command that takes it."""


def artefact_of(path: str) -> str | None:
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
    return str(kind) if kind in _ARTEFACTS else None


def plan_in(directory: str) -> Plan | None:
    """Open the plan in a directory; return None without a plan."""
    path = os.path.join(directory, "plan.arrow")
    return Plan.open(path) if os.path.exists(path) else None


def lengths_in(directory: str) -> LengthTable | None:
    """Open the length table in a directory; return None without a table."""
    path = os.path.join(directory, "lengths.arrow")
    return LengthTable.open(path) if os.path.exists(path) else None


def tables_at(path: str) -> tuple[LengthTable | None, Plan | None]:
    """Open the lengths and the plan at a path or in a directory; numbers in a ``.npy`` or ``.npz``
    file are lengths.
    """
    if os.path.isdir(path):
        return lengths_in(path), plan_in(path)
    artefact = artefact_of(path)
    if artefact == PLAN:
        return None, Plan.open(path)
    if artefact == LENGTHS:
        return LengthTable.open(path), None
    return lengths_from_npy(path) if path.endswith((".npy", ".npz")) else None, None


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
        **(
            {}
            if table.sharing is None
            else {"shared": asdict(sharing_of(prefixes_of(table), table.tokens))}
        ),
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
    """Describe a path that is not what a command expects:
    ``l.arrow is a length table, not a plan``.
    """
    artefact = artefact_of(path)
    return (
        f"{path} is {_ARTEFACTS[artefact][0]}, not {expected}"
        if artefact is not None
        else f"{path} is not {expected}"
    )


def refuse_as_data(paths: Iterable[str]) -> None:
    """Refuse paths that brimful wrote as data.

    Raises:
        SettingsError: names the command that takes the path.
    """
    for path in paths:
        artefact = artefact_of(path)
        if artefact is not None:
            raise SettingsError(
                f"{mismatch(path, 'data')}: `brimful {_ARTEFACTS[artefact][1]}` takes it"
            )


def integers_from_npy(
    path: str, *, flag: str = "", error_type: type[BrimfulError] = InvalidLengthsError
) -> Any:
    """Open the array of a .npy file, or the named arrays of a .npz file.

    Args:
        path: the file.
        flag: the flag that named it, with a trailing blank, for messages.
        error_type: error class for a file that holds no numbers.

    Raises:
        SourceNotFoundError: no such file.
        InvalidLengthsError: it holds no numbers; or the other error type.
    """
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{flag}{path}: no such file") from error
    except (ValueError, EOFError, OSError) as error:
        raise error_type(f"{flag}{path} is not a .npy file of numbers: {error}") from error


def lengths_from_npy(path: str) -> LengthTable:
    """Return a length table from the whole numbers in a .npy file, or from the named columns of a
    .npz file.

    Raises:
        SourceNotFoundError: no such file.
        InvalidLengthsError: not a file of numbers, no numbers in it, or numbers that are not whole
            or below 1.
    """
    values = integers_from_npy(path)
    try:
        if isinstance(values, np.ndarray):
            table = LengthTable.from_lengths(values)
        else:
            # Columns of the file become arguments, and tokens are called lengths there.
            columns = {"lengths" if name == "tokens" else name: values[name] for name in values}
            if "lengths" not in columns:
                raise InvalidLengthsError(
                    f"it has {', '.join(values)}, and the lengths must be named tokens"
                )
            table = LengthTable.from_lengths(**columns)
    except InvalidLengthsError as error:
        raise InvalidLengthsError(f"{path}: {error.message}") from error
    if len(table) == 0:
        raise InvalidLengthsError(f"{path} holds no lengths")
    return table


def decoder_of(name: str | None, packs: PackStore) -> Callable[[TokenIds], str] | None:
    """Return a function from tokens to text, or None without a tokenizer: boundaries can be shown
    without text.

    The tokenizer that packed is opened at the path in the notes of the packs, without network
    access.
    """
    path = name or packs.notes.get("tokenizer")
    if not path:
        return None
    try:
        tokenizer = Tokenizer(path, ask_hub=name is not None)
        hf = tokenizer.hf
        # Another tokenizer would silently give other text for the same ids.
        fingerprint = packs.notes.get("tokenizer_fingerprint")
        if fingerprint is not None and tokenizer.fingerprint != fingerprint:
            click.echo(
                f"({path} is not the tokenizer that packed: the text may be wrong)", err=True
            )
    except BrimfulError as error:
        click.echo(f"(no text: {in_flags(error.message)})", err=True)
        return None
    return lambda ids: str(hf.decode(list(map(int, ids)), skip_special_tokens=False))
