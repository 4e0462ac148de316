"""Table of a source, joined from the files of its blocks, and a readable list of its rows without a
length.
"""

import json
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

import numpy as np

from brimful.base.atomic_file import atomic_file
from brimful.base.sharing import SharedLengths
from brimful.base.tables import Ragged, open_table
from brimful.base.typing import AnyPath
from brimful.lengths.table import STATES, LengthTable
from brimful.lengths.targets import Account, Targets, joined_rows
from brimful.measure.block import RUNS
from brimful.measure.block_task import BlockContext, BlockTask
from brimful.sources.source import Source

MAX_REJECTS = 1000
"""Number of rejected rows that a table names, from the first; the rest are only counted."""


def rejects_of(
    earlier_table: LengthTable | None, tasks: list[BlockTask]
) -> Iterator[tuple[int, str]]:
    """Yield sample and reason of all rejects in the order of the samples, a block at a time."""
    if earlier_table is not None:
        yield from ((sample_id, reason) for sample_id, _, reason in earlier_table.rejects)
    for task in tasks:
        # Rows of a part are counted from its first: the same part may be elsewhere in another
        # source.
        for row, _, reason in open_table(task.lengths_path).description["rejects"]:
            yield task.start + row, reason


def write_rejects(source: Source, path: AnyPath, rejects: Iterable[tuple[int, str]]) -> None:
    """Write JSON lines of the skipped rows: file and line, reason, and the row if it can be read.

    Args:
        source: the rows.
        path: file of the list.
        rejects: sample and reason of each, in the order of the samples.
    """
    with atomic_file(path) as file:
        for sample_id, reason in rejects:
            row = source.rows.get(sample_id)
            record = {
                "sample_id": sample_id,
                "where": source.where(sample_id),
                "reason": reason,
                "row": None if isinstance(row, Exception) else row,
            }
            file.write(
                json.dumps(record, ensure_ascii=False, default=str).encode("utf-8", "surrogatepass")
                + b"\n"
            )


def assembled_table(
    earlier_table: LengthTable | None,
    tasks: list[BlockTask],
    context: BlockContext,
    provenance: dict[str, Any],
    sharing: SharedLengths | None = None,
) -> LengthTable:
    """Join the rows of an earlier table and the files of the later tasks into the table of the
    source.
    """
    source = context.source
    columns = {name: np.empty(len(source), dtype=np.int32) for name in context.budgets}
    states = np.zeros(len(source), dtype=np.int64) if context.encoder.takes_attachments else None
    runs: list[Ragged] = []
    accounts: list[Any] = []
    # Libraries of all rows, including rows that an earlier job measured; tables without any have no
    # such entry.
    libraries: dict[str, set[str]] = {"engines": set(), "encoded_by": set()}
    if earlier_table is not None:
        for name, values in libraries.items():
            values.update(earlier_table.provenance.get(name, ()))
        for name in context.budgets:
            columns[name][: len(earlier_table)] = earlier_table.budgets[name]
        if states is not None:
            assert earlier_table.states is not None, "others were not taken"
            states[: len(earlier_table)] = earlier_table.states
        accounts.append(earlier_table.account.as_dict())
        if context.needs_runs:
            assert earlier_table.targets is not None
            assert earlier_table.targets.runs is not None
            runs.append(earlier_table.targets.runs)
    for task in tasks:
        block_table = open_table(task.lengths_path)
        for name in context.budgets:
            columns[name][task.start : task.stop] = block_table.flat(name)
        if states is not None:
            states[task.start : task.stop] = block_table.flat(STATES)
        accounts.append(block_table.description["account"])
        libraries["engines"].add(block_table.description.get("engine", ""))
        libraries["encoded_by"].add(block_table.description.get("encoded_by", ""))
        if context.needs_runs:
            runs.append(block_table.ragged(RUNS))
    targets = None
    if context.targets:
        targets = (
            Targets.of_runs(joined_rows(runs))
            if context.needs_runs
            else Targets.of_all_tokens(columns["tokens"])
        )
    used = {name: sorted(values - {""}) for name, values in libraries.items() if values - {""}}
    return LengthTable(
        columns,
        provenance={**provenance, **used, "account": Account.sum(accounts).as_dict()},
        rejects=[
            [sample_id, source.where(sample_id), reason]
            for sample_id, reason in islice(rejects_of(earlier_table, tasks), MAX_REJECTS)
        ],
        targets=targets,
        states=states,
        sharing=sharing,
    )
