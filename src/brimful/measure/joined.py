"""Join of length tables: several parts of a data set in one plan."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import Any

import numpy as np

from brimful.base.fingerprint import fingerprint_of
from brimful.base.sharing import wing_of
from brimful.errors import CacheMismatchError, SettingsError
from brimful.lengths.table import LengthTable
from brimful.lengths.targets import Account, Targets, joined_rows
from brimful.measure.assembly import MAX_REJECTS
from brimful.measure.measure_settings import differing_settings
from brimful.measure.pending import measure_command


def join_tables(tables: Sequence[LengthTable]) -> LengthTable:
    """Concatenate tables: the lengths of all parts, as if measured in one call.

    ::

        a.jsonl  3 5      samples 0 1
        b.jsonl  4        sample  0         joined  3 5 4, samples 0 1 2 of a.jsonl and b.jsonl, in this order

    Packs are written from the same parts in the same order, or encoded from them on the fly.
    Samples of different tables share nothing: measure the parts in one call if they should.

    Args:
        tables: of the parts, in their order.

    Returns:
        One table, not saved. Its fingerprint, and so its plan, equals a table measured in one call
        (with ``share``, if no sample of a table shares with one of another).

    Raises:
        CacheMismatchError: tables with different settings or columns, or two with the same data;
            names them and the command that measures them.
        SettingsError: no tables, or lengths that depend on the other parts, as for KTO.

    >>> parts = [LengthTable.from_lengths([3, 5]), LengthTable.from_lengths([4])]
    >>> join_tables(parts).tokens.tolist()
    [3, 5, 4]
    """
    if not tables:
        raise SettingsError("no length tables to join")
    first = tables[0]
    for table in tables:
        if table.joins_rows:
            raise SettingsError(
                f"{_title(table)} is of KTO, whose mismatches come from neighboring rows: "
                f"{_measure(tables)} measures all parts at once"
            )
        if differences := _differences(first, table):
            raise CacheMismatchError(
                f"{_title(table)} and {_title(first)} cannot be planned together; these parts "
                f"differ: {', '.join(differences)}. Measure one of them again with the settings of "
                f"the other: {_measure([table])}"
            )
    _check_disjoint(tables)
    offsets = np.cumsum([0, *map(len, tables)])
    rejects = (
        [sample_id + int(offset), *rest]
        for table, offset in zip(tables, offsets, strict=False)
        for sample_id, *rest in table.rejects
    )
    has_states = all(table.states is not None for table in tables)
    return LengthTable(
        {name: np.concatenate([table.budgets[name] for table in tables]) for name in first.budgets},
        provenance=_provenance(tables),
        rejects=list(islice(rejects, MAX_REJECTS)),
        targets=_targets(tables),
        sharing=None
        if first.sharing is None
        else wing_of(first.sharing).joined([table.sharing for table in tables]),
        states=np.concatenate([table.states for table in tables]) if has_states else None,
    )


def _targets(tables: Sequence[LengthTable]) -> Targets | None:
    targets = [table.targets for table in tables if table.targets is not None]
    if not targets:
        return None
    runs = [each.runs for each in targets if each.runs is not None]
    counts = np.concatenate([each.counts for each in targets])
    return Targets(counts, joined_rows(runs) if runs else None)


def _provenance(tables: Sequence[LengthTable]) -> dict[str, Any]:
    first = tables[0].provenance
    libraries = {
        name: sorted({value for table in tables for value in table.provenance.get(name, ())})
        for name in ("engines", "encoded_by")
    }
    if "source_fingerprint" not in first:
        return {"group_size": tables[0].group_size} if tables[0].group_size > 1 else {}
    return {
        **first,
        **{name: values for name, values in libraries.items() if values},
        # No source has this fingerprint: a joined table is measured again, never continued.
        "source_fingerprint": fingerprint_of(
            ["joined", [table.provenance["source_fingerprint"] for table in tables]]
        ),
        "source": f"{first['source']} … {tables[-1].provenance['source']}"
        if len(tables) > 1
        else first["source"],
        "parts": [entry for table in tables for entry in table.provenance["parts"]],
        "num_samples": sum(map(len, tables)),
        **({"num_rows": sum(table.num_rows for table in tables)} if tables[0].per_turn else {}),
        "account": Account.sum(table.provenance.get("account", {}) for table in tables).as_dict(),
    }


def _differences(first: LengthTable, table: LengthTable) -> list[str]:
    """Return the names of the settings in which two tables differ and on which lengths or plans
    depend.
    """

    # Settings of reading rows may differ from file to file, as in one call.
    names = differing_settings(first.provenance, table.provenance)
    names = [name for name in names if not name.startswith("row ")]
    if list(first.budgets) != list(table.budgets):
        names.append(f"budgets ({', '.join(first.budgets)} and {', '.join(table.budgets)})")
    if first.group_size != table.group_size:
        names.append(f"samples of a row ({first.group_size} and {table.group_size})")
    shares = [one.sharing.kind.value for one in (first, table) if one.sharing is not None]
    if len(shares) == 1:
        names.append(f"share (one has {shares[0]} that its samples share)")
    if first.per_turn != table.per_turn:
        names.append(f"answers as samples ({_per_turn(first)} and {_per_turn(table)})")
    if _form_of_targets(first) != _form_of_targets(table):
        names.append(f"targets ({_form_of_targets(first)} and {_form_of_targets(table)})")
    if ("source_fingerprint" in first.provenance) != ("source_fingerprint" in table.provenance):
        names.append("origin (one names its data and the other has plain numbers)")
    return list(dict.fromkeys(names))


def _per_turn(table: LengthTable) -> str:
    return "one each" if table.per_turn else "all in one"


def _form_of_targets(table: LengthTable) -> str:
    if table.targets is None:
        return "not measured"
    return "all tokens" if table.targets.runs is None else "some tokens"


def _check_disjoint(tables: Sequence[LengthTable]) -> None:
    """Reject two tables of the same data: their samples would be packed twice.

    Raises:
        CacheMismatchError: names both, and the file they share.
    """
    seen: dict[Any, LengthTable] = {}
    for table in tables:
        fingerprint = table.provenance.get("source_fingerprint")
        titles = [str(title) for title, _ in table.provenance.get("parts", ())]
        for key in [
            *([("content", fingerprint)] if fingerprint is not None and len(table) else []),
            *titles,
        ]:
            if key in seen:
                shared = (
                    "the same samples as"
                    if isinstance(key, tuple)
                    else f"samples of {key}, as does"
                )
                raise CacheMismatchError(
                    f"{_title(table)} holds {shared} {_title(seen[key])}, and they would be packed "
                    "twice: leave one of them out, or measure both in one call"
                )
        seen |= dict.fromkeys([("content", fingerprint), *titles], table)


def _title(table: LengthTable) -> str:
    return table.path or str(table.provenance.get("source", "a table"))


def _measure(tables: Sequence[LengthTable]) -> str:
    sources = [str(table.provenance.get("source", "DATA")) for table in tables]
    shown = sources if len(sources) < 4 else [*sources[:2], "…", sources[-1]]
    output = tables[0].path if len(tables) == 1 and tables[0].path else "FILE"
    return f"`{measure_command(shown, output)}`"
