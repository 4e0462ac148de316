"""List of the samples that a plan dropped, each with its place, length and reason."""

import json
import os

from brimful.base.atomic_file import atomic_file
from brimful.lengths.table import LengthTable
from brimful.plan import Overflow, Plan
from brimful.sources.source import Source


def why_dropped(plan: Plan, table: LengthTable, sample_id: int) -> str:
    """Return the reason why a plan dropped a sample."""
    usable = plan.alignment.usable(plan.capacity)
    is_longer = int(table.tokens[sample_id]) > usable
    if table.group_size > 1:
        # Chosen and rejected are dropped together, by their total length.
        pair = table.tokens.reshape(-1, table.group_size)[sample_id // table.group_size]
        if int(pair.min()) < 0:
            return "the other sample of the pair was rejected"
        is_longer = int(plan.alignment.rounded(pair).sum()) > usable
        if is_longer and plan.settings.overflow_policy in (Overflow.ERROR, Overflow.DROP):
            return f"chosen and rejected together are longer than a pack ({usable:,} tokens)"
    # Policies that cut keep every long sample, unless the cut took its last target.
    if is_longer and plan.settings.overflow_policy in (Overflow.ERROR, Overflow.DROP):
        return f"longer than a pack ({usable:,} tokens)"
    if table.targets is not None and table.targets.counts[sample_id] == 0:
        return "no target of the loss"
    if is_longer:
        return "no target of the loss is left after truncation"
    return "with its group, or for another budget than tokens"


def write_dropped(path: str | os.PathLike[str], plan: Plan, table: LengthTable, source: Source) -> None:
    """Write one JSON line for each dropped sample, in the order of their ids; no file without any."""
    # A file of an earlier job is replaced, even by an empty one.
    if len(plan.dropped_ids) == 0 and not os.path.exists(path):
        return
    with atomic_file(path) as file:
        for sample_id in plan.dropped_ids.tolist():
            assert table.targets is not None  # a job measures them
            sample = {
                "sample_id": sample_id,
                "where": source.where(sample_id),
                "tokens": int(table.tokens[sample_id]),
                "targets": int(table.targets.counts[sample_id]),
                "reason": why_dropped(plan, table, sample_id),
            }
            file.write(json.dumps(sample, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n")
