"""Entry point of planning: from lengths over items and packs to a plan."""

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from brimful.arguments import CAPACITY_NAMES, understands
from brimful.measure.table import LengthTable, as_lengths
from brimful.plan.algorithms import CountOptions
from brimful.plan.counts.histogram import Histogram
from brimful.plan.counts.runs import histograms_of_parts
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.fit.lower_bound import lower_bound
from brimful.plan.items import Items, prepare_items
from brimful.plan.ledger import ledger_of
from brimful.plan.order.exchange import exchange_segments
from brimful.plan.order.shuffle import companion_order, pack_order
from brimful.plan.order.underfilled import repack_underfilled
from brimful.plan.packing import Packing, PackResult
from brimful.plan.phased import Recipe
from brimful.plan.plan import Plan
from brimful.plan.policies.alignment import Alignment
from brimful.plan.policies.no_target import NoTarget
from brimful.plan.policies.overflow import Overflow
from brimful.plan.policies.truncated import Truncated
from brimful.plan.settings import PlanSettings
from brimful.plan.vector.pack_vectors import pack_vectors
from brimful.ragged import positions_type
from brimful.typing import AnyIntArray

_NONE_TRUNCATED = Truncated.none()


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
    num_packs: int | None = None,
) -> Plan:
    """Decide which samples share which pack, from their lengths alone.

    Pure: no I/O; the same arguments give the same plan, on any machine and with any number of processes. Where a search
    was needed (``Plan.outcome.solver``), the same solver has to be installed.

    Args:
        lengths: a ``LengthTable``, or whole numbers: tokens of each sample.
        capacity: tokens of a pack at most, from 1 to 2**31 - 1. ``max_length``, ``packing_length`` and ``seq_length``
            are understood.
        algorithm: one of ``ALGORITHMS``. ``optimal`` searches for as few packs as the lengths allow and proves how
            far from that it is; ``auto`` does so only where best fit decreasing is over 0.1 % above the bound, and
            packs under several budgets if there are any; ``next_fit``, ``first_fit``, ``best_fit`` and ``worst_fit``
            take the samples in their order; ``phased`` follows a recipe; ``concat_split`` cuts the stream of all
            tokens; ``spread`` makes ``num_packs`` even packs. ``Plan.outcome`` tells how far it came. The names that others use (``bfd``, ``ffd``,
            ``wrapped``, and ``sequential`` for next fit, whose packs follow each other as the samples do) are
            understood.
        overflow: policy for samples longer than a pack (``Overflow``).
        no_target: policy for samples without a target of the loss (``NoTarget``), where the table knows targets.
        budgets: limits of other quantities in a pack: columns of the table by name, ``samples``, and
            ``squares`` (the sum of length², which attention costs). Never exceeded.
        alignment: multiples that segments and rows are padded up to; a number is a multiple for each segment
            (``Alignment.of_parallelism`` for context, sequence and FP8 parallelism). Lengths are planned as padded.
        groups: ``int64[num_samples]``: samples of the same number from 0 on stay together and in order (preference
            pairs, episodes); -1 is alone.
        min_fill: share of the capacity below which packs are postponed: packed once more among themselves, and put
            last. Nothing is dropped.
        phases: steps of ``phased``, as a ``Recipe`` or its text (docs/phased-recipe.md); ``Recipe.default()`` if None.
            ``Plan.outcome`` tells what each phase did.
        mix: exchange segments between packs until these look like the data, at no cost in fill (``plan.mix``).
        seed: shuffles samples of equal length and the order of the packs, at no cost in fill, so that packs do
            not come sorted by length; None keeps the textbook order. Algorithms that keep the order of the
            samples ignore it.
        epoch: gives each pass over the data its own companions and order of packs: plan again for each epoch. The
            membership of packs changes with it only where it is given.
        time_limit: seconds that ``optimal`` (60 if None) and ``auto`` may search. A search that is cut short returns its
            best packs, which may differ on a slower machine: then save the plan rather than make it again. If None,
            ``auto`` stops after a fixed number of operations instead, and its plan is the same everywhere.
        num_packs: exactly so many packs, for ``spread``; as few as best fit decreasing takes if None.

    Raises:
        InvalidLengthsError: no samples, a length below 1, no whole numbers, or a ``num_packs`` that they cannot fill.
        NoTargetError: samples without a target, and ``no_target`` is ``error``; or no sample has one.
        OversizedSampleError: a sample or a group exceeds a capacity, and ``overflow`` is ``error``.
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
        num_packs=num_packs,
    )
    return plan_with(lengths, settings, groups=groups)


def plan_with(
    lengths: LengthTable | AnyIntArray | Sequence[int],
    settings: PlanSettings,
    *,
    groups: AnyIntArray | Sequence[int] | None = None,
) -> Plan:
    """Plan packs with settings that were made, and checked, before the lengths are known.

    Pure: no I/O. Arguments and errors as of ``plan_packs``.

    >>> settings = PlanSettings(capacity=100, algorithm="first_fit_decreasing")
    >>> plan_with([70, 30, 30, 30, 20], settings).num_packs
    2
    """
    table = lengths if isinstance(lengths, LengthTable) else LengthTable({"tokens": as_lengths(lengths)})
    items = prepare_items(table, settings, may_reject=table is lengths, groups=groups)
    result = _pack(items, settings)
    return _make_plan(table, items, result, settings)


def _pack(items: Items, settings: PlanSettings) -> PackResult[Packing]:
    """Pack items; packs that are not full enough come last."""
    result = _pack_tokens(items, settings) if items.sizes.ndim == 1 else _pack_budgets(items, settings)
    if not settings.min_fill:
        return result

    def repack(some_sizes: AnyIntArray) -> Packing:
        if some_sizes.ndim > 1:
            return pack_vectors(some_sizes, capacities=items.capacities, seed=settings.seed or 0).packs
        counts = Histogram.of(some_sizes)
        runs = best_fit_decreasing(counts, capacity=settings.usable)
        return runs.assign(companion_order(some_sizes, counts, seed=settings.seed, epoch=settings.epoch))

    packing, below = repack_underfilled(
        result.packs, items.sizes, capacities=items.capacities, min_fill=settings.min_fill, repack=repack
    )
    return PackResult(packing, result.bound, replace(result.outcome, packs_below_min_fill=below))


def _pack_tokens(items: Items, settings: PlanSettings) -> PackResult[Packing]:
    """Pack by tokens alone, each item with its aligned length."""
    lengths = items.sizes
    capacity, seed, epoch = settings.usable, settings.seed, settings.epoch
    parts = histograms_of_parts(lengths)
    counts = Histogram.sum(parts)
    bound = lower_bound(counts, capacity=capacity)
    if settings.rule.in_order is not None:
        return PackResult(settings.rule.in_order(lengths, capacity=capacity), bound)
    assert settings.rule.on_counts is not None
    options = CountOptions(
        capacity, recipe=settings.recipe, time_limit=settings.time_limit, num_packs=settings.num_packs
    )
    result = settings.rule.on_counts(counts, options, bound)
    # Counts do not say which sample goes where: samples of equal length are exchangeable.
    runs = result.packs
    if seed is None:
        packing = runs.assign_by_position(lengths, parts)
    else:
        order = companion_order(lengths, counts, seed=seed, epoch=epoch)
        packing = runs.assign(order, pack_order(runs.num_packs, seed=seed, epoch=epoch))
    if settings.mix and seed is not None:
        packing = exchange_segments(packing, lengths, capacity=capacity, seed=seed, epoch=epoch, alikeness=1.0)
    return PackResult(packing, result.bound, result.outcome)


def _pack_budgets(items: Items, settings: PlanSettings) -> PackResult[Packing]:
    """Pack under several budgets."""
    result = pack_vectors(items.sizes, capacities=items.capacities, seed=settings.seed or 0)
    order = pack_order(len(result.packs), seed=settings.seed, epoch=settings.epoch)
    return result if order is None else replace(result, packs=result.packs.take(order))


def _make_plan(table: LengthTable, items: Items, result: PackResult[Packing], settings: PlanSettings) -> Plan:
    packing, segments = result.packs, items.segments
    if items.groups is not None:
        packing = items.groups.to_samples(packing)
    # Rows of the segments, in the order of the packs.
    rows = packing.items
    starts = np.broadcast_to(np.zeros(1, dtype=np.int32), rows.shape)
    if segments.starts is not None:
        starts = segments.starts[rows]
    sample_ids = rows
    if segments.sample_ids is not None:
        sample_ids = segments.sample_ids[rows].astype(positions_type(len(table)), copy=False)
    ledger = ledger_of(table, segments, settings)
    truncated = _NONE_TRUNCATED
    # A sample that lost its beginning ends where its segment does: its length follows from the packs.
    if ledger.samples_truncated and settings.overflow_policy is Overflow.TRUNCATE:
        ids = np.flatnonzero(table.tokens > settings.usable)
        truncated = Truncated(ids, table.tokens[ids])
    return Plan(
        capacity=settings.capacity,
        offsets=packing.offsets,
        sample_ids=sample_ids,
        starts=starts,
        find_lengths=lambda: segments.lengths[rows],
        dropped_ids=segments.dropped_ids,
        truncated=truncated,
        ledger=ledger,
        settings=settings,
        outcome=replace(result.outcome, dropped_by=items.dropped_by, groups=items.fingerprint_of_groups),
        bound=result.bound,
        find_length_fingerprint=lambda: table.fingerprint,
    )
