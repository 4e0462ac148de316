"""Entry point of planning: defaults, and the order of the steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from brimful.arguments import CAPACITY_NAMES, understands
from brimful.errors import InvalidLengthsError, NoTargetError, SettingsError
from brimful.fingerprint import fingerprint_array
from brimful.measure.table import REJECTED, LengthTable, as_lengths
from brimful.messages import setting
from brimful.plan.alignment import Alignment
from brimful.plan.best_fit_decreasing import best_fit_decreasing
from brimful.plan.bound import lower_bound
from brimful.plan.concat_split import concat_split
from brimful.plan.dealing import deal
from brimful.plan.groups import as_groups
from brimful.plan.histogram import Histogram
from brimful.plan.ledger import Ledger
from brimful.plan.many_budgets import Items, items_of
from brimful.plan.min_fill import postpone
from brimful.plan.mix import companion_order, pack_order
from brimful.plan.mix import mix as mix_packs
from brimful.plan.no_target import NoTarget, without_target
from brimful.plan.overflow import Overflow, Pieces, apply_overflow
from brimful.plan.packing import Packing
from brimful.plan.phased import Recipe
from brimful.plan.placing import pack_in_order, place
from brimful.plan.plan import Plan
from brimful.plan.settings import IN_ORDER, PlanSettings
from brimful.plan.truncated import Truncated
from brimful.plan.vector_packing import pack_vectors
from brimful.typing import AnyIntArray, Int64Array, Lengths

__all__ = ["plan_by", "plan_packs"]


@understands(capacity=CAPACITY_NAMES)
def plan_packs(
    lengths: LengthTable | AnyIntArray | Sequence[int],
    *,
    capacity: int,
    algorithm: str = "auto",
    overflow: Overflow | str = Overflow.ERROR,
    no_target: NoTarget | str = NoTarget.ERROR,
    budgets: Mapping[str, int] | None = None,
    alignment: Alignment | int = 1,
    groups: AnyIntArray | Sequence[int] | None = None,
    min_fill: float = 0.0,
    phases: Recipe | str | None = None,
    mix: bool = False,
    seed: int | None = 0,
    epoch: int = 0,
    time_limit: float | None = None,
) -> Plan:
    """Decide which samples share which pack, from their lengths alone.

    Pure: no I/O; the same arguments give the same plan, on any machine and with any number of processes. Where a search
    was needed (``settings["solver"]``), the same solver has to be installed.

    Args:
        lengths: a ``LengthTable``, or whole numbers: tokens of each sample.
        capacity: most tokens of a pack, from 1 to 2**31 - 1. ``max_length``, ``packing_length`` and ``seq_length`` are
            understood.
        algorithm: one of ``ALGORITHMS``. ``optimal`` searches for as few packs as the lengths allow and proves how
            far from that it is; ``auto`` does so only where best fit decreasing is over 0.1 % above the bound, and
            packs under several budgets if there are any; ``next_fit``, ``first_fit``, ``best_fit`` and ``worst_fit``
            take the samples in their order; ``phased`` follows a recipe; ``concat_split`` cuts the stream of all
            tokens. ``settings["outcome"]`` says what was found. The names that others use (``bfd``, ``ffd``,
            ``wrapped``, and ``sequential`` for next fit, whose packs follow each other as the samples do) are
            understood.
        overflow: what becomes of samples longer than a pack (``Overflow``).
        no_target: what becomes of samples without a target of the loss (``NoTarget``), where the table knows targets.
        budgets: most that a pack may hold of other things: columns of the table by name, ``samples``, and
            ``squares`` (the sum of length², which attention costs). Never exceeded.
        alignment: what segments and rows are padded up to; a number is a multiple for each segment
            (``Alignment.of_parallelism`` for context, sequence and FP8 parallelism). Lengths are planned as padded.
        groups: ``int64[num_samples]``: samples of the same number from 0 on stay together and in order (preference
            pairs, episodes); -1 is alone.
        min_fill: share of the capacity below which packs are postponed: packed once more among themselves, and put
            last. Nothing is dropped.
        phases: what ``phased`` does, as a ``Recipe`` or its text (docs/phased-recipe.md); ``Recipe.default()`` if None.
            ``settings["phase_reports"]`` says what each phase did.
        mix: exchange segments between packs until these look like the data, at no cost in fill (``plan.mix``).
        seed: shuffles samples of equal length and the order of the packs, at no cost in fill, so that packs do
            not come sorted by length; None keeps the textbook order. Algorithms that keep the order of the
            samples ignore it.
        epoch: gives each pass over the data its own companions and order of packs: plan again for each epoch. The
            membership of packs changes with it only where it is given.
        time_limit: seconds that ``optimal`` (60 if None) and ``auto`` may search. Where it strikes, the best packs so
            far are taken, which may be others on a slower machine: then save the plan rather than make it again.
            If None, ``auto`` stops after so many operations instead, and its plan is the same everywhere.

    Raises:
        InvalidLengthsError: no samples, a length below 1, or no whole numbers.
        NoTargetError: samples without a target, and ``no_target`` is ``error``; or no sample has one.
        OversizedSampleError: a length, or what a sample or a group takes of a budget, exceeds the capacity and
            ``overflow`` is ``error``.
        SettingsError: an impossible capacity, an unknown name, options that contradict each other.
        MissingExtraError: ``optimal`` without a solver installed.

    >>> plan_packs([70, 30, 30, 30, 20], capacity=100, algorithm="first_fit_decreasing").num_packs
    2
    >>> plan = plan_packs([3, 3, 5, 6, 1, 1], capacity=8, budgets={"samples": 2}, seed=None)
    >>> sorted(sorted(segment.length for segment in pack) for pack in plan)
    [[1, 3], [1, 6], [3, 5]]
    """
    settings = PlanSettings(
        capacity=capacity,
        algorithm=algorithm,
        overflow=overflow,
        no_target=no_target,
        budgets=budgets,
        alignment=alignment,
        min_fill=min_fill,
        phases=phases,
        mix=mix,
        seed=seed,
        epoch=epoch,
        time_limit=time_limit,
    )
    return plan_by(lengths, settings, groups=groups)


def plan_by(
    lengths: LengthTable | AnyIntArray | Sequence[int],
    settings: PlanSettings,
    *,
    groups: AnyIntArray | Sequence[int] | None,
) -> Plan:
    """``plan_packs`` with its settings as one object, checked before the lengths are known."""
    given = lengths if isinstance(lengths, LengthTable) else LengthTable({"tokens": as_lengths(lengths)})
    _check_lengths(given.tokens, may_reject=isinstance(lengths, LengthTable))
    of_groups = None
    if groups is not None:
        of_groups = as_groups(groups, num_samples=len(given), policy=settings.policy)
    untaught = without_target(
        given, capacity=_longest_segment(settings), overflow=settings.policy, policy=settings.untaught, groups=of_groups
    )
    table = _without(given, untaught) if len(untaught) else given
    if settings.algorithm == "concat_split":
        if groups is not None:
            raise SettingsError(
                f"{setting('algorithm', 'concat_split')} cuts samples anywhere, and {setting('groups')} stay whole: leave one out"
            )
        pieces, packing = _concat_split(table.tokens, settings)
        found = _Found(packing, lower_bound(Histogram.of(pieces.lengths), capacity=settings.capacity), {})
    elif of_groups is None and not settings.budgets:
        pieces = apply_overflow(
            table.tokens, capacity=settings.usable, policy=settings.policy, unit=settings.aligned.total
        )
        found = _pack(settings.aligned.rounded(pieces.lengths).astype(np.int32, copy=False), settings)
    else:
        items = items_of(table, settings.limits, policy=settings.policy, alignment=settings.aligned, groups=of_groups)
        pieces, found = items.pieces, _pack_items(items, settings)
        if of_groups is not None:
            found = replace(found, notes={**found.notes, "groups": fingerprint_array(of_groups)})
    if len(untaught):
        by = found.notes.get("dropped_by", {"tokens": len(pieces.dropped)} if len(pieces.dropped) else {})
        found = replace(found, notes={**found.notes, "dropped_by": {**by, "no_target": len(untaught)}})
        pieces = replace(pieces, dropped=np.union1d(pieces.dropped, untaught))
    ledger = _ledger(given, pieces, settings)
    if ledger.targets_packed == 0 and ledger.samples_packed:
        raise NoTargetError(
            f"of {ledger.targets_in:,} targets of the loss none is in a pack: {ledger.targets_dropped:,} were dropped and "
            f"{ledger.targets_cut:,} cut off; a larger {setting('capacity')} keeps some",
            sample_id=int(pieces.sample_ids[0]) if pieces.sample_ids is not None else 0,
        )
    return _make_plan(given, pieces, found, ledger, settings=settings)


def _longest_segment(settings: PlanSettings) -> int:
    """Most tokens that the overflow policy leaves of a sample."""
    return settings.capacity if settings.algorithm == "concat_split" else settings.usable


def _without(table: LengthTable, sample_ids: Int64Array) -> LengthTable:
    """The table with some samples marked as those that could not be read: planning passes over them."""
    tokens = table.tokens.copy()
    tokens[sample_ids] = REJECTED
    return LengthTable({**table.budgets, "tokens": tokens})


@dataclass(frozen=True)
class _Found:
    """Packs of pieces; packs that no plan does without; and what else is to be said."""

    packing: Packing
    bound: int
    notes: Mapping[str, Any]


def _pack_items(items: Items, settings: PlanSettings) -> _Found:
    """Pack under several budgets, or groups, or both."""
    notes: dict[str, Any] = {"dropped_by": items.dropped} if items.dropped else {}
    if len(items.capacities) == 1:
        found = _pack(items.sizes[:, 0].astype(np.int32), settings)
    else:
        result = pack_vectors(items.sizes, capacities=items.capacities, seed=settings.seed or 0)
        order = pack_order(len(result.packing), seed=settings.seed, epoch=settings.epoch)
        packing = result.packing if order is None else result.packing.reordered(order)
        again = lambda sizes: pack_vectors(sizes, capacities=items.capacities, seed=settings.seed or 0).packing  # noqa: E731
        found = _postponed(_Found(packing, result.bound, {"outcome": result.outcome}), items.sizes, settings, again)
    return _Found(items.expand(found.packing), found.bound, {**found.notes, **notes})


def _pack(sizes: Lengths, settings: PlanSettings) -> _Found:
    """Pack by tokens alone, each item with what it takes in its pack; packs that are not full enough come last."""

    def again(some: Int64Array) -> Packing:
        lengths = some[:, 0].astype(np.int32)
        rest = Histogram.of(lengths)
        packs = best_fit_decreasing(rest, capacity=settings.usable)
        return packs.fill(companion_order(lengths, rest, seed=settings.seed, epoch=settings.epoch))

    found = _pack_once(sizes, settings)
    return _postponed(found, sizes[:, None], settings, again) if settings.min_fill else found


def _postponed(
    found: _Found, sizes: AnyIntArray, settings: PlanSettings, again: Callable[[Int64Array], Packing]
) -> _Found:
    if not settings.min_fill:
        return found
    capacities = settings.limits.capacities.copy()
    capacities[0] = settings.usable
    result = postpone(
        found.packing,
        sizes.astype(np.int64, copy=False),
        capacities=capacities,
        min_fill=settings.min_fill,
        pack=again,
    )
    below = {"packs_below_min_fill": [result.packs_below, result.packs_left_below]}
    return _Found(result.packing, found.bound, {**found.notes, **below})


def _pack_once(sizes: Lengths, settings: PlanSettings) -> _Found:
    capacity, seed, epoch = settings.usable, settings.seed, settings.epoch
    items = Histogram.of(sizes)
    bound = lower_bound(items, capacity=capacity)
    if settings.algorithm in IN_ORDER:
        return _Found(pack_in_order(sizes, capacity=capacity, algorithm=settings.algorithm), bound, {})
    placements, bound, notes = place(
        items,
        capacity=capacity,
        algorithm=settings.algorithm,
        bound=bound,
        phases=settings.recipe,
        time_limit=settings.time_limit,
    )
    if seed is None:
        return _Found(deal(sizes, items, placements), bound, notes)
    order = companion_order(sizes, items, seed=seed, epoch=epoch)
    packing = placements.fill(order, pack_order(placements.num_packs, seed=seed, epoch=epoch))
    if settings.mix:
        packing = mix_packs(packing, sizes, capacity=capacity, seed=seed, epoch=epoch, alikeness=1.0)
    return _Found(packing, bound, notes)


def _concat_split(tokens: Lengths, settings: PlanSettings) -> tuple[Pieces, Packing]:
    """The stream of what the policy keeps, cut; under ``split`` that is every token of every sample."""
    capacity, policy = settings.capacity, settings.policy
    if policy is Overflow.SPLIT:
        return concat_split(tokens, capacity=capacity)
    kept = apply_overflow(tokens, capacity=capacity, policy=policy)
    cut, packing = concat_split(kept.lengths, capacity=capacity)
    assert cut.sample_ids is not None
    assert cut.starts is not None
    ids = cut.sample_ids if kept.sample_ids is None else kept.sample_ids[cut.sample_ids]
    starts = cut.starts if kept.starts is None else cut.starts + kept.starts[cut.sample_ids]
    return Pieces(cut.lengths, ids, starts, kept.dropped), packing


def _check_lengths(tokens: Lengths, *, may_reject: bool) -> None:
    if len(tokens) == 0:
        raise InvalidLengthsError("there are no lengths: nothing to plan")
    if int(tokens.min()) < 1:
        wrong = np.flatnonzero((tokens < 1) & (tokens != REJECTED) if may_reject else tokens < 1)
        if len(wrong):
            at = int(wrong[0])
            raise InvalidLengthsError(f"sample {at} has length {int(tokens[at])}; every sample needs at least 1 token")


def _make_plan(
    table: LengthTable,
    pieces: Pieces,
    found: _Found,
    ledger: Ledger,
    *,
    settings: PlanSettings,
) -> Plan:
    items = found.packing.items
    starts = np.broadcast_to(np.zeros(1, dtype=np.int32), items.shape)
    if pieces.starts is not None:
        starts = pieces.starts[items]
    sample_ids = items
    if pieces.sample_ids is not None:
        narrow = np.int32 if len(table) < 2**31 else np.int64
        sample_ids = pieces.sample_ids[items].astype(narrow, copy=False)
    return Plan(
        capacity=settings.capacity,
        offsets=found.packing.offsets,
        sample_ids=sample_ids,
        starts=starts,
        lengths=lambda: pieces.lengths[items],
        dropped_ids=pieces.dropped,
        truncated=_truncated(table.tokens, settings) if ledger.samples_truncated else Truncated.none(),
        ledger=ledger,
        settings={**settings.as_dict(), **found.notes},
        bound=found.bound,
        length_fingerprint=lambda: table.fingerprint,
    )


def _truncated(tokens: Lengths, settings: PlanSettings) -> Truncated:
    if settings.policy is not Overflow.TRUNCATE:
        return Truncated.none()  # of those that lost their beginning, the segment ends where the sample does
    ids = np.flatnonzero(tokens > settings.usable)
    return Truncated(ids, tokens[ids])


def _ledger(table: LengthTable, pieces: Pieces, settings: PlanSettings) -> Ledger:
    tokens = table.tokens
    tokens_packed = int(pieces.lengths.sum(dtype=np.int64))
    targets = _targets_of(table, pieces)
    if pieces.lengths is tokens:  # nothing dropped, cut or rejected: no need to look at every sample again
        return Ledger(
            samples_in=len(tokens),
            tokens_in=tokens_packed,
            samples_packed=len(tokens),
            tokens_packed=tokens_packed,
            segments=len(tokens),
            **targets,
        )
    tokens_in = table.total_tokens
    tokens_dropped = int(tokens[pieces.dropped].sum(dtype=np.int64))
    rejected = int(np.count_nonzero(tokens < 0))
    packed = len(tokens) - rejected - len(pieces.dropped)
    split = truncated = 0
    if len(pieces.lengths) != packed:
        assert pieces.sample_ids is not None
        split = int(np.count_nonzero(np.bincount(pieces.sample_ids) > 1))
    if settings.policy in (Overflow.TRUNCATE, Overflow.TRUNCATE_LEFT):
        truncated = int(np.count_nonzero(tokens > _longest_segment(settings)))
        if settings.untaught is NoTarget.DROP:  # some of those may be left out for what truncation took
            truncated -= int(np.count_nonzero(tokens[pieces.dropped] > _longest_segment(settings)))
    return Ledger(
        samples_in=len(tokens),
        tokens_in=tokens_in,
        samples_packed=packed,
        tokens_packed=tokens_packed,
        samples_dropped=len(pieces.dropped),
        tokens_dropped=tokens_dropped,
        samples_truncated=truncated,
        tokens_truncated=tokens_in - tokens_packed - tokens_dropped,
        samples_split=split,
        segments=len(pieces.lengths),
        samples_rejected=rejected,
        **targets,
    )


def _targets_of(table: LengthTable, pieces: Pieces) -> dict[str, int]:
    """The account of targets; nothing where they were not measured."""
    if table.targets is None:
        return {}
    targets, tokens = table.targets, table.tokens
    dropped = int(targets.counts[pieces.dropped].sum(dtype=np.int64))
    if pieces.lengths is tokens:
        packed, untaught = targets.total, int(np.count_nonzero(targets.counts == 0))
    else:
        ids = np.arange(len(tokens)) if pieces.sample_ids is None else pieces.sample_ids
        held = targets.counts[ids].astype(np.int64)
        cut = np.flatnonzero(pieces.lengths != tokens[ids])
        starts = np.zeros(len(cut), dtype=np.int64) if pieces.starts is None else pieces.starts[cut]
        held[cut] = targets.within(ids[cut], starts, pieces.lengths[cut])
        packed = int(held.sum())
        taught = np.zeros(len(tokens), dtype=np.bool_)
        taught[ids[held > 0]] = True
        present = np.zeros(len(tokens), dtype=np.bool_)
        present[ids] = True
        untaught = int(np.count_nonzero(present & ~taught))
    return {
        "samples_without_target": untaught,
        "targets_in": targets.total,
        "targets_packed": packed,
        "targets_dropped": dropped,
        "targets_cut": targets.total - packed - dropped,
    }
