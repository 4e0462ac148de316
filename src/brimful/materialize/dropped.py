"""The list of samples that a plan left out: where each lies, how long it is, and why."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import Any

from brimful.blobs import atomic_file
from brimful.measure.table import LengthTable
from brimful.plan import Plan
from brimful.sources.source import Source

__all__ = ["dropped_samples", "why_dropped", "write_dropped"]


def dropped_samples(plan: Plan, table: LengthTable, source: Source) -> Iterator[dict[str, Any]]:
    """One object for each sample that was left out, in the order of their ids."""
    for sample_id in plan.dropped_ids.tolist():
        yield {
            "sample_id": sample_id,
            "where": source.where(sample_id),
            "tokens": int(table.tokens[sample_id]),
            **({} if table.targets is None else {"targets": int(table.targets.counts[sample_id])}),
            "reason": why_dropped(plan, table, sample_id),
        }


def why_dropped(plan: Plan, table: LengthTable, sample_id: int) -> str:
    """Why a plan left a sample out."""
    longest = plan.alignment.usable(plan.capacity)
    tokens = int(table.tokens[sample_id])
    targets = None if table.targets is None else int(table.targets.counts[sample_id])
    if tokens > longest and plan.settings.get("overflow") not in ("truncate", "truncate_left", "split"):
        return f"longer than a pack ({longest:,} tokens)"
    if targets == 0:
        return "no target of the loss"
    if tokens > longest:
        return "no target of the loss is left after truncation"
    return "with its group, or for another budget than tokens"


def write_dropped(path: str | os.PathLike[str], plan: Plan, table: LengthTable, source: Source) -> None:
    """Write them as JSON lines; no file where there are none."""
    if len(plan.dropped_ids) == 0 and not os.path.exists(path):
        return
    with atomic_file(path) as file:
        for sample in dropped_samples(plan, table, source):
            file.write(json.dumps(sample, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
