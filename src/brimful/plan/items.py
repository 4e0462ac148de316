"""From a length table to the items that are packed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np

from brimful.base.fingerprint import fingerprint_array
from brimful.base.sharing import wing_of
from brimful.base.typing import AnyIntArray, Fingerprint, Int64Array, IntArrayLike
from brimful.base.wording import setting
from brimful.errors import InvalidLengthsError, NoTargetError, OversizedSampleError, SettingsError
from brimful.lengths.table import REJECTED, LengthTable
from brimful.plan.plan_settings import PlanSettings
from brimful.plan.policies.budgets import Budgets
from brimful.plan.policies.groups import (
    Groups,
    as_groups,
    group_items,
    limits_of_members,
)
from brimful.plan.policies.overflow import (
    NO_SAMPLES,
    Overflow,
    Segments,
    apply_overflow,
    cut_stream,
    samples_to_leave_out,
)


@dataclass(frozen=True)
class Items:
    """Items to pack: segments of samples, or groups of them.

    Attributes:
        segments: have real lengths; their ``dropped_ids`` name every sample that was left out.
        sizes: ``int32[num_items]``, aligned tokens of each item, if packs are limited only in
            tokens; otherwise ``int64[num_items, num_budgets]``.
        capacities: ``int64[num_budgets]``: limits of a pack; the limit in tokens is the one that
            alignment leaves.
        groups: members of each item; None if items are segments.
        dropped_by: number of samples left out by each budget, by ``no_target`` if they have no
            target, and by ``group_mate_rejected`` if an error rejected a member of their group.
            Empty if every dropped sample is longer than a pack.
        fingerprint_of_groups: None without groups.
    """

    segments: Segments
    sizes: AnyIntArray
    capacities: Int64Array
    groups: Groups | None = None
    dropped_by: Mapping[str, int] = field(default_factory=dict)
    fingerprint_of_groups: Fingerprint | None = None

    def take(self, rows: AnyIntArray) -> Items:
        """Select items, in the given order; an item may be repeated. Not for groups."""
        assert self.groups is None, "members of groups are drawn together"
        segments = self.segments
        starts = None if segments.starts is None else segments.starts[rows]
        selection = Segments(
            segments.lengths[rows], segments.ids()[rows], starts, segments.dropped_ids
        )
        return replace(self, segments=selection, sizes=np.ascontiguousarray(self.sizes[rows]))


def prepare_items(
    table: LengthTable,
    settings: PlanSettings,
    *,
    may_reject: bool = True,
    groups: IntArrayLike | None = None,
) -> Items:
    """Apply the policies of the settings, in this order:

    1. The capacity in tokens shrinks to what alignment can use (``Alignment.usable``). This is the
       limit at which the policy drops or cuts: a segment of that length is already aligned.
    2. Samples without a target are left out, or refused.
    3. Segments take their aligned length from the budget ``tokens``; ``samples`` and ``squares``
      use real lengths.
    4. Members of a group become one item, whose size is the sum of their sizes. Each row of several
       samples is a group (``LengthTable.groups``); truncation cuts each of its samples to an equal
       part of a pack.
    5. Items that exceed another budget, and groups that exceed any, are an error or dropped whole,
      counted by budget.

    ``concat_split`` has no items: its segments are the stream of all tokens, cut where packs end.

    Pure: no I/O.

    Args:
        table: lengths of all samples.
        settings: the policies.
        may_reject: allow samples that were rejected when they were measured.
        groups: see ``plan_packs``.

    Raises:
        InvalidLengthsError: no samples, or a length below 1.
        OversizedSampleError: the policy is ``error``; names samples or a group, budget and numbers.
        NoTargetError: samples without a target, and the policy is ``error``.
        SettingsError: an unknown budget, a policy that cannot cut a budget, groups with an
            algorithm that cuts.
    """
    tokens = table.tokens
    if len(tokens) == 0:
        raise InvalidLengthsError("no lengths: nothing to plan")
    shortest = int(tokens.min())
    if shortest < 1:
        invalid = (tokens < 1) & ~(may_reject & (tokens == REJECTED))
        if invalid.any():
            sample_id = int(np.argmax(invalid))
            raise InvalidLengthsError(
                f"sample {sample_id} has length {int(tokens[sample_id])}; every sample needs at "
                "least 1 token"
            )
    if settings.algorithm == "concat_split" and (table.group_size > 1 or groups is not None):
        name = "preferences" if groups is None else setting("groups")
        raise SettingsError(
            f"{setting('algorithm', 'concat_split')} cuts samples anywhere, and {name} stay whole: "
            "leave one out"
        )
    group_ids = limits = None
    if table.group_size > 1:
        if groups is not None:
            raise SettingsError(
                "these are rows of two samples (preferences or KTO), which are packed together "
                f"already: leave {setting('groups')} out"
            )
        if settings.overflow_policy is Overflow.SPLIT:
            raise SettingsError(
                f"{setting('overflow', 'split')} cuts samples into several, and both samples of a "
                "row of preferences or KTO stay in one pack: choose drop, truncate or "
                "truncate_left"
            )
        group_ids = table.groups
        limits = limits_of_members(
            tokens,
            group_size=table.group_size,
            capacity=settings.usable,
            alignment=settings.row_alignment,
            policy=settings.overflow_policy,
            shared=_shared(table, settings, group_ids, np.arange(len(tokens)), tokens),
        )
    elif groups is not None:
        group_ids = as_groups(groups, num_samples=len(table), policy=settings.overflow_policy)
    left_out, fault = NO_SAMPLES, None
    if table.targets is not None:
        try:
            left_out = samples_to_leave_out(
                table,
                capacity=settings.longest_segment if limits is None else limits,
                overflow=settings.overflow_policy,
                policy=settings.no_target_policy,
                groups=group_ids,
            )
        except NoTargetError as error:
            if error.sample_ids is None:
                raise
            # Planning continues without them, so that one message also names the samples that are
            # too long.
            fault, left_out = error, np.asarray(error.sample_ids)
    if len(left_out):
        # Treated like samples that could not be read: planning skips them.
        tokens = tokens.copy()
        tokens[left_out] = REJECTED
        table = LengthTable(
            {**table.budgets, "tokens": tokens},
            provenance=table.provenance,
            sharing=table.sharing,
        )
    if settings.max_path is not None and group_ids is not None:
        name = setting("groups") if groups is not None else "preferences"
        raise SettingsError(
            f"{setting('max_path')} limits single samples, and {name} stay whole: leave one out"
        )
    try:
        if group_ids is not None:
            items = _of_groups(table, settings, group_ids, limits)
        elif settings.budgets:
            items = _of_budgets(table, settings)
        else:
            segments = _segments(table, settings)
            # No matrix, and no copy unless something is cut or aligned.
            sizes: AnyIntArray = segments.lengths
            if settings.row_alignment.segment > 1:
                sizes = settings.row_alignment.rounded(sizes)
            items = Items(segments, sizes, np.array([settings.usable], dtype=np.int64))
    except OversizedSampleError as error:
        if fault is None:
            raise
        hint = f"{setting('no_target', 'drop')} {setting('overflow', 'drop')}"
        raise fault.with_fault(error.message, hint) from error
    if fault is not None:
        raise fault
    if not len(left_out):
        return items
    dropped_ids = items.segments.dropped_ids
    dropped_by = items.dropped_by or ({"tokens": len(dropped_ids)} if len(dropped_ids) else {})
    segments = replace(items.segments, dropped_ids=np.union1d(dropped_ids, left_out))
    return replace(items, segments=segments, dropped_by={**dropped_by, "no_target": len(left_out)})


def _segments(table: LengthTable, settings: PlanSettings) -> Segments:
    """Apply the overflow policy; in the stream of ``concat_split``, ``split`` keeps every token of
    every sample.
    """
    tokens, policy = table.tokens, settings.overflow_policy
    if settings.algorithm == "concat_split":
        return cut_stream(tokens, capacity=settings.capacity, policy=policy)
    if int(tokens.min()) > 0 and int(tokens.max()) <= settings.longest_segment:
        return Segments(tokens, None, None, NO_SAMPLES)
    is_of_pack = settings.longest_segment == settings.usable
    return apply_overflow(
        tokens,
        capacity=settings.longest_segment,
        policy=policy,
        unit=settings.row_alignment.total if is_of_pack else 1,
        limit="capacity" if is_of_pack else "max_path",
        shares=settings.shares,
    )


def _of_budgets(table: LengthTable, settings: PlanSettings) -> Items:
    budgets = Budgets.of(settings.usable, settings.budgets)
    alignment, policy = settings.row_alignment, settings.overflow_policy
    segments = _segments(table, settings)
    dropped_by = {"tokens": len(segments.dropped_ids)} if len(segments.dropped_ids) else {}
    sizes = budgets.sizes(
        table,
        lengths=segments.lengths,
        sample_ids=segments.sample_ids,
        rounded=alignment.rounded(segments.lengths),
    )
    stored = [name for name in budgets.names[1:] if name in table.budgets]
    if (
        stored
        and policy is Overflow.SPLIT
        and segments.starts is not None
        and segments.starts.any()
    ):
        sample_id = int(segments.ids()[np.argmax(segments.starts > 0)])
        raise SettingsError(
            f"{setting('overflow', 'split')} divides tokens, not {stored[0]}: of sample "
            f"{sample_id} ({int(table.tokens[sample_id]):,} tokens, capacity {settings.usable:,}) "
            "it is unknown which segment takes them; choose drop or truncate"
        )
    first = budgets.first_exceeded(sizes)
    fits = first < 0
    if not fits.all():
        if policy is not Overflow.DROP:
            text, larger, name = budgets.describe_oversized(sizes, segments.sample_ids)
            if policy is Overflow.ERROR:
                raise OversizedSampleError(
                    f"{text}. Choose {setting('overflow', 'drop')}, or {larger}"
                )
            raise SettingsError(
                f"{setting('overflow', policy.value)} cuts tokens, not {name}, and {text}. Choose "
                f"drop, or {larger}"
            )
        # No segment is cut under the policy drop, so a sample that exceeds a budget is one segment.
        ids = segments.ids()
        segments = Segments(
            segments.lengths[fits], ids[fits], None, np.union1d(segments.dropped_ids, ids[~fits])
        )
        sizes = np.ascontiguousarray(sizes[fits])
        counts = np.bincount(first[~fits], minlength=len(budgets.names)).tolist()
        dropped_by |= {
            name: count for name, count in zip(budgets.names, counts, strict=True) if count
        }
    return Items(segments, sizes, budgets.capacities, dropped_by=dropped_by)


def _shared(
    table: LengthTable,
    settings: PlanSettings,
    group_ids: Int64Array | None,
    sample_ids: Int64Array,
    lengths: AnyIntArray,
) -> Int64Array | None:
    """Return what samples share within their groups; None if the plan shares nothing."""
    if not settings.shares or table.sharing is None or group_ids is None:
        return None
    wing = wing_of(table.sharing)
    saved: Int64Array = wing.saved_in_groups(table, group_ids[sample_ids], sample_ids, lengths)
    return saved


def _of_groups(
    table: LengthTable, settings: PlanSettings, group_ids: Int64Array, limits: Int64Array | None
) -> Items:
    budgets = Budgets.of(settings.usable, settings.budgets)
    alignment, policy = settings.row_alignment, settings.overflow_policy
    tokens = table.tokens
    is_rejected = tokens < 0
    # A group with a rejected member is left out entirely: its other members are the bereft.
    broken_groups = np.unique(group_ids[is_rejected & (group_ids >= 0)])
    is_bereft = ~is_rejected & np.isin(group_ids, broken_groups)
    ids = np.flatnonzero(~is_rejected & ~is_bereft)
    lengths = tokens[ids] if limits is None else np.minimum(tokens, limits)[ids].astype(np.int32)
    sizes = budgets.sizes(
        table, lengths=lengths, sample_ids=ids, rounded=alignment.rounded(lengths)
    )
    shared = _shared(table, settings, group_ids, ids, lengths)
    if shared is not None:
        sizes[:, 0] -= shared
    groups = group_items(sizes, group_ids[ids], are_rows=table.group_size == 2)
    oversized, dropped_by = groups.oversized(budgets)
    if oversized.any():
        if policy is Overflow.ERROR:
            text, larger, name = groups.describe_oversized(
                budgets, sizes, ids, unit=alignment.total
            )
            noun, cut = "rows" if groups.are_rows else "groups", ""
            if groups.are_rows and name == "tokens":
                cut = f" {setting('overflow', 'truncate')}, which cuts each sample to half a pack,"
            raise OversizedSampleError(
                f"{text}. Choose {setting('overflow', 'drop')}, which leaves out whole "
                f"{noun},{cut} or {larger}"
            )
        rows = np.sort(groups.members[np.repeat(~oversized, np.diff(groups.offsets))])
        ids, lengths, sizes = ids[rows], lengths[rows], sizes[rows]
        groups = group_items(sizes, group_ids[ids])
    if is_bereft.any():
        dropped_by = {**dropped_by, "group_mate_rejected": int(np.count_nonzero(is_bereft))}
    is_dropped = ~is_rejected
    is_dropped[ids] = False
    starts = None
    if policy is Overflow.TRUNCATE_LEFT:
        starts = (tokens[ids] - lengths).astype(np.int32)
    segments = Segments(lengths, ids, starts, np.flatnonzero(is_dropped))
    packed_sizes = groups.sizes if len(budgets.names) > 1 else groups.sizes[:, 0].astype(np.int32)
    return Items(
        segments, packed_sizes, budgets.capacities, groups, dropped_by, fingerprint_array(group_ids)
    )
