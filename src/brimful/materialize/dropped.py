"""The list of samples that a plan left out: where each lies, how long it is, and why."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from brimful.measure.table import LengthTable
from brimful.plan import Plan
from brimful.sources.source import Source
from brimful.store import atomic_file

__all__ = ["dropped_samples", "write_dropped"]


def dropped_samples(plan: Plan, table: LengthTable, source: Source) -> Iterator[dict[str, Any]]:
    """One object for each sample that was left out, in the order of their ids."""
    longest = plan.alignment.usable(plan.capacity)
    for sample_id in plan.dropped_ids.tolist():
        tokens = int(table.tokens[sample_id])
        targets = None if table.targets is None else int(table.targets.counts[sample_id])
        if tokens > longest and plan.settings.get("overflow") not in ("truncate", "truncate_left", "split"):
            reason = f"longer than a pack ({longest:,} tokens)"
        elif targets == 0:
            reason = "no target of the loss"
        elif tokens > longest:
            reason = "no target of the loss is left after truncation"
        else:
            reason = "with its group, or for another budget than tokens"
        yield {
            "sample_id": sample_id,
            "where": source.where(sample_id),
            "tokens": tokens,
            **({} if targets is None else {"targets": targets}),
            "reason": reason,
        }


def write_dropped(path: str | os.PathLike[str], plan: Plan, table: LengthTable, source: Source) -> None:
    """Write them as JSON lines; no file where there are none."""
    if len(plan.dropped_ids) == 0 and not os.path.exists(path):
        return
    with atomic_file(path) as file:
        for sample in dropped_samples(plan, table, source):
            file.write(json.dumps(sample, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
