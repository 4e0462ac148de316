"""Validation of a plan against the lengths that it was made from."""

from __future__ import annotations

import numpy as np

from brimful.base.sharing import wing_of
from brimful.base.typing import AnyIntArray, Int64Array, Lengths
from brimful.errors import PlanMismatchError
from brimful.lengths.table import LengthTable
from brimful.plan.packing import LengthsLike, Packing, loads_of
from brimful.plan.policies.budgets import DERIVED, Budgets
from brimful.plan.saved.planned_packs import PlannedPacks


def validate_plan(
    plan: PlannedPacks, lengths: LengthsLike, *, groups: AnyIntArray | None = None
) -> None:
    """Prove a plan; arguments and errors are as in ``Plan.validate``."""
    table = lengths if isinstance(lengths, LengthTable) else LengthTable({"tokens": lengths})
    if len(table) != plan.ledger.samples_in:
        raise PlanMismatchError(
            f"the plan is for {plan.ledger.samples_in:,} samples, not {len(table):,}"
        )
    _validate_ids(plan, table)
    sizes = np.diff(plan.offsets)
    if (sizes < 1).any():
        raise PlanMismatchError(f"pack {int(np.argmin(sizes))} is empty")
    _validate_loads(plan, table, has_columns=table is lengths)
    if plan.sharing is None:
        _validate_samples(plan, table.tokens)
    else:
        wing_of(plan.sharing).validate(plan, table)
    _validate_account(plan, table.tokens)
    if groups is None:
        groups = table.groups
    if groups is not None:
        _validate_groups(plan, np.asarray(groups))


def _validate_loads(plan: PlannedPacks, table: LengthTable, *, has_columns: bool) -> None:
    """Compare each pack with the capacity of each budget; without a table, only of budgets that
    follow from tokens.
    """
    limits = plan.settings.budgets or {}
    budgets = Budgets.of(
        plan.settings.row_alignment.usable(plan.capacity),
        {name: limit for name, limit in limits.items() if has_columns or name in DERIVED},
    )
    if plan.sharing is None:
        sizes = budgets.sizes(
            table,
            lengths=plan.lengths,
            sample_ids=plan.sample_ids.astype(np.int64, copy=False),
            rounded=plan.settings.row_alignment.rounded(plan.lengths),
        )
    else:
        sizes = wing_of(plan.sharing).sizes(plan, table, budgets)
    loads = loads_of(Packing(plan.offsets, np.arange(len(plan.sample_ids))), sizes)
    for column, name in enumerate(budgets.names):
        overfull = np.flatnonzero(loads[:, column] > budgets.capacities[column])
        if len(overfull):
            pack = int(overfull[0])
            load, capacity = int(loads[pack, column]), int(budgets.capacities[column])
            raise PlanMismatchError(f"pack {pack} holds {load:,} {name} of {capacity:,}")


def _validate_groups(plan: PlannedPacks, groups: AnyIntArray) -> None:
    pack = np.repeat(np.arange(len(plan.offsets) - 1), np.diff(plan.offsets))
    names = groups[plan.sample_ids]
    rows = np.flatnonzero(names >= 0)
    # Side by side in one pack: each name has one run of consecutive segments, and no run continues
    # in the next pack.
    starts_run = np.ones(len(rows), dtype=bool)
    starts_run[1:] = (np.diff(names[rows]) != 0) | (np.diff(rows) != 1) | (np.diff(pack[rows]) != 0)
    packed_names, num_runs = np.unique(names[rows][starts_run], return_counts=True)
    if bool((num_runs > 1).any()):
        raise PlanMismatchError(
            f"group {int(packed_names[np.argmax(num_runs > 1)])} is not side by side in one pack"
        )
    dropped_names = np.intersect1d(groups[plan.dropped_ids], packed_names)
    if len(dropped_names):
        raise PlanMismatchError(
            f"group {int(dropped_names[0])} is packed in part and dropped in part"
        )


def _validate_samples(plan: PlannedPacks, tokens: Lengths) -> None:
    ids = plan.sample_ids.astype(np.int64)
    ends = plan.starts.astype(np.int64) + plan.lengths
    outside = (plan.lengths < 1) | (plan.starts < 0) | (ends > tokens[ids])
    if outside.any():
        row = int(np.argmax(outside))
        raise PlanMismatchError(
            f"a segment of sample {int(ids[row])} ends at {int(ends[row]):,}, "
            f"and the sample has {int(tokens[ids[row]]):,} tokens"
        )
    _validate_copies(plan, ids, ends)


def _validate_ids(plan: PlannedPacks, table: LengthTable) -> None:
    ids = plan.sample_ids
    if len(ids) and (int(ids.min()) < 0 or int(ids.max()) >= len(table)):
        raise PlanMismatchError(f"the plan names samples outside 0 … {len(table) - 1:,}")


def _validate_account(plan: PlannedPacks, tokens: Lengths) -> None:
    """Check that every sample is packed or dropped, and not both."""
    is_planned = np.zeros(len(tokens), dtype=bool)
    is_planned[plan.sample_ids] = True
    if bool(is_planned[plan.dropped_ids].any()):
        raise PlanMismatchError("a sample is both packed and dropped")
    is_planned[plan.dropped_ids] = True
    missing_ids = np.flatnonzero(~is_planned & (tokens >= 0))
    if len(missing_ids) != plan.ledger.samples_not_drawn:
        raise PlanMismatchError(
            f"{len(missing_ids):,} samples are in no pack, such as {missing_ids[:1].tolist()}, and "
            f"the plan's account says that {plan.ledger.samples_not_drawn:,} were not drawn"
        )
    if int(plan.lengths.sum(dtype=np.int64)) != plan.ledger.tokens_packed:
        raise PlanMismatchError("the packed tokens do not add up to the plan's account")


def _validate_copies(plan: PlannedPacks, ids: Int64Array, ends: Int64Array) -> None:
    """Compare the segments with the account of repeats: each sample is packed a whole number of
    times.

    For every position in a sample except its two ends, as many of its segments begin there as end
    there. So the segments add up to several copies of the sample, without a gap.
    """
    positions = np.concatenate([plan.starts.astype(np.int64), ends])
    owners = np.concatenate([ids, ids])
    steps = np.repeat(np.array([1, -1], dtype=np.int64), len(ids))
    order = np.lexsort((positions, owners))
    owners, positions, steps = owners[order], positions[order], steps[order]
    edges = np.flatnonzero(np.diff(owners, prepend=-1) | np.diff(positions, prepend=-1))
    balance, owners = np.add.reduceat(steps, edges), owners[edges]
    owners, balance = owners[balance != 0], balance[balance != 0]
    # The remaining positions of a sample are a pair: as many copies begin at the first as end at
    # the second.
    samples, first_rows, counts = np.unique(owners, return_index=True, return_counts=True)
    if (counts != 2).any():
        sample = int(samples[np.argmax(counts != 2)])
        raise PlanMismatchError(f"the segments of sample {sample} overlap or leave tokens out")
    num_repeats = int((balance[first_rows] - 1).sum())
    if num_repeats != plan.ledger.draws_repeated:
        raise PlanMismatchError(
            f"{num_repeats:,} draws are repeats, and the plan's account says "
            f"{plan.ledger.draws_repeated:,}"
        )
