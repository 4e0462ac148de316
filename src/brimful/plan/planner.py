"""Entry point of planning: from lengths to items, packs and a plan."""

from collections.abc import Mapping
from dataclasses import replace
from math import ceil
from typing import Any

import numpy as np

from brimful.base.arguments import CAPACITY_NAMES, understands
from brimful.base.ragged import positions_type
from brimful.base.rng import generator
from brimful.base.sharing import wing_of
from brimful.base.typing import AnyIntArray, BoolArray, IntArrayLike
from brimful.base.wings import BUDGET_PACKER, loaded
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.lengths.table import LengthTable
from brimful.plan.algorithms import ALGORITHMS, CountOptions
from brimful.plan.counts.histogram import Histogram, lower_bound
from brimful.plan.drawn import PackDrawn
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.items import Items, prepare_items
from brimful.plan.ledger import Ledger, ledger_of
from brimful.plan.order.shuffle import seeded_orders, shuffle_classes
from brimful.plan.packing import LengthsLike, Packing, PackResult, loads_of, tokens_of
from brimful.plan.plan import Plan
from brimful.plan.plan_settings import PlanSettings
from brimful.plan.policies.groups import check_beginnings_stay
from brimful.plan.policies.overflow import Overflow, Truncated

_NONE_TRUNCATED = Truncated.none()


@understands(None, PlanSettings, capacity=CAPACITY_NAMES)
def plan_packs(
    lengths: LengthsLike,
    *,
    groups: IntArrayLike | None = None,
    sources: Mapping[str, int] | None = None,
    uses: AnyIntArray | None = None,
    **options: Any,
) -> Plan:
    """Decide which samples share which pack, from their lengths alone.

    Pure: no I/O; the same arguments give the same plan, on any machine and with any number of
    processes. If a search was needed (``Plan.outcome.solver``), this requires the same solver.

    Args:
        lengths: a ``LengthTable``, or whole numbers: tokens of each sample.
        capacity: maximum tokens of a pack, from 1 to 2**31 - 1. Also accepted as ``max_length``,
            ``packing_length`` and ``seq_length``.
        algorithm: one of ``ALGORITHMS``. ``optimal`` searches for as few packs as the lengths allow
            and proves how far from that it is; ``auto`` does so only if best fit decreasing is over
            0.1 % above the bound, and packs under several budgets if any are given; ``next_fit``,
            ``first_fit``, ``best_fit`` and ``worst_fit`` take the samples in their order;
            ``phased`` follows a recipe; ``concat_split`` cuts the stream of all tokens; ``spread``
            makes ``num_packs`` even packs. ``Plan.outcome`` tells how far it came. Names of other
            libraries are accepted: ``bfd``, ``ffd``, ``wrapped``, and ``sequential`` for next fit,
            whose packs keep the order of the samples.
        overflow: policy for samples longer than a pack (``Overflow``); None for ``split`` with
            ``concat_split``, which cuts samples anyway, and for ``error`` with the others.
        no_target: policy for samples without a target of the loss (``NoTarget``), if the table has
            targets.
        budgets: limits of other quantities in a pack: names of columns of the table, ``samples``,
            and ``squares`` (the sum of length², the cost of attention). Never exceeded.
        alignment: multiples that segments and rows are padded up to; a number is a multiple for
            each segment (``Alignment.of_parallelism`` for context, sequence and FP8 parallelism).
            Plans count padded lengths.
        groups: ``int64[num_samples]``: samples of the same number, from 0, stay together and in
            order (preference pairs, episodes); a sample with -1 is alone.
        min_fill: share of the capacity below which packs are postponed: their samples are packed
            once more, and these packs come last. Nothing is dropped.
        phases: steps of ``phased``, as a ``Recipe`` or its text (docs/phased-recipe.md);
            ``Recipe.default()`` if None. ``Plan.outcome`` tells what each phase did.
        seed: shuffles samples of equal length and the order of the packs, at no cost in fill, so
            that packs are not sorted by length; None keeps the textbook order. Algorithms that keep
            the order of the samples ignore it.
        epoch: gives each pass over the data its own combinations and order of packs: plan again for
            each epoch. The membership of packs changes with it only if it is given.
        time_limit: seconds that ``optimal`` (60 if None) and ``auto`` may search. A search that is
            cut short returns its best packs, which may differ on a slower machine: then save the
            plan rather than make it again. If None, ``auto`` stops after a fixed number of
            operations instead, and its plan is the same everywhere.
        num_packs: exact number of packs, for ``spread``; None for as few as best fit decreasing
            takes.
        draw: draw some samples several times and others later (``Draw``), such as a ``Mixture`` of
            several sources by weight; None packs every sample once. ``Plan.outcome.drawn`` has the
            resulting shares.
        sources: number of samples of each source to draw from, by name and in the order of the
            table; None for the files of the table.
        share: ``prefixes`` packs tokens with which several samples begin once for those in a pack
            (``Plan.sharing``); the table must have been measured with it.
        max_path: maximum tokens of a sample, such as the context of the model, if a pack may be
            longer; None for the capacity.
        uses: ``int[num_samples]``, how often each sample was consumed before
            (``consumed_samples``): the draw continues from there. None: from where the epochs
            before this one would have ended.

    Raises:
        InvalidLengthsError: no samples, a length below 1, a fraction, or a ``num_packs`` that the
            samples cannot fill.
        NoTargetError: samples without a target, and ``no_target`` is ``error``; or no sample has
            one.
        OversizedSampleError: a sample or a group exceeds a capacity, and ``overflow`` is ``error``.
        SettingsError: an impossible capacity, an unknown name, options that contradict each other.
        MissingExtraError: ``optimal`` without a solver installed.

    >>> plan_packs([70, 30, 30, 30, 20], capacity=100, algorithm="first_fit_decreasing").num_packs
    2
    >>> plan = plan_packs([3, 3, 5, 6, 1, 1], capacity=8, budgets={"samples": 2}, seed=None)
    >>> sorted(sorted(segment.length for segment in pack) for pack in plan)
    [[1, 3], [1, 6], [3, 5]]
    """
    return plan_with(lengths, PlanSettings(**options), groups=groups, sources=sources, uses=uses)


def plan_with(
    lengths: LengthsLike,
    settings: PlanSettings,
    *,
    groups: IntArrayLike | None = None,
    sources: Mapping[str, int] | None = None,
    uses: AnyIntArray | None = None,
) -> Plan:
    """Plan packs with settings that were made and checked before the lengths are known.

    Pure: no I/O. Arguments and errors are as in ``plan_packs``.

    >>> settings = PlanSettings(capacity=100, algorithm="first_fit_decreasing")
    >>> plan_with([70, 30, 30, 30, 20], settings).num_packs
    2
    """
    table = lengths if isinstance(lengths, LengthTable) else LengthTable({"tokens": lengths})
    if table.joins_rows:
        check_beginnings_stay(settings.overflow_policy)
    if settings.draw is None and not (sources is None and uses is None):
        name = "sources" if sources is not None else "uses"
        raise SettingsError(
            f"{setting(name)} belongs to {setting('draw')}, which is not given: leave it out"
        )
    items = prepare_items(table, settings, may_reject=table is lengths, groups=groups)
    draw: PackDrawn | None = None if settings.draw is None else loaded(settings.draw.packer)
    if settings.shares:
        sharing = wing_of(settings.share).pack(table, items, settings, _pack)
        packed = sharing.result
        drawn = None
        if draw is not None:  # which draws each sample once: the packs are these
            drawn = draw(table, items, settings, sources=sources, uses=uses, pack=lambda *_: packed)
        return _make_plan(table, items, packed, settings, drawn and drawn.record, sharing=sharing)
    if draw is None:
        return _make_plan(table, items, _pack(items, settings), settings)
    items, result, record, ledger = draw(
        table, items, settings, sources=sources, uses=uses, pack=_pack
    )
    return _make_plan(table, items, result, settings, record, ledger)


def _pack(items: Items, settings: PlanSettings) -> PackResult[Packing]:
    """Pack items; packs that are not full enough come last."""
    result = (
        _pack_tokens(items, settings) if items.sizes.ndim == 1 else _pack_budgets(items, settings)
    )
    if not settings.min_fill:
        return result
    packing, below = _repack_underfilled(result.packs, items, settings)
    return PackResult(packing, result.bound, replace(result.outcome, packs_below_min_fill=below))


def _repack_underfilled(
    packing: Packing, items: Items, settings: PlanSettings
) -> tuple[Packing, tuple[int, int]]:
    """Pack the items of packs below the minimum fill again; packs that are still below it come
    last.

    ::

        capacity 10, min_fill 0.7       6 · 9 · 5 · 3 1 · 8
        below: 6, 5, 3 1                taken apart: 6 5 3 1
        packed again                    6 3 1 · 5
        result                          9 · 8 · 6 3 1 · 5          5 comes last: nothing is dropped

    A pack is as full as its fullest budget: a pack that is full of images cannot take more text.
    Packing again helps if items were packed in their order or in phases; after a decreasing
    algorithm it changes little except the order: steps begin with full packs, and the few others
    are together.

    Returns:
        Every item, in at most as many packs as before; and how many packs are below the fill,
        before and in the result.
    """
    thresholds = np.array(
        [ceil(tokens_of(settings.min_fill, capacity)) for capacity in items.capacities.tolist()]
    )

    def is_below(some_packs: Packing, some_sizes: AnyIntArray) -> BoolArray:
        loads = loads_of(some_packs, some_sizes).reshape(-1, len(thresholds))
        return np.asarray((loads < thresholds).all(axis=1))

    is_underfilled = is_below(packing, items.sizes)
    num_underfilled = int(np.count_nonzero(is_underfilled))
    candidates = packing.take(np.flatnonzero(is_underfilled))
    sizes = items.sizes[candidates.items]
    if sizes.ndim > 1:
        repacked = _pack_vectors(sizes, items, settings).packs
    else:
        counts = Histogram.of(sizes)
        order, _ = seeded_orders(sizes, counts, 0, seed=settings.seed, epoch=settings.epoch)
        repacked = best_fit_decreasing(counts, capacity=settings.usable).assign(order)
    num_repacked_below = int(np.count_nonzero(is_below(repacked, sizes)))
    if len(repacked) <= num_underfilled and num_repacked_below < num_underfilled:
        candidates = Packing(repacked.offsets, candidates.items[repacked.items])
    is_last = is_below(candidates, items.sizes)
    full = packing.take(np.flatnonzero(~is_underfilled))
    result = full.joined(candidates.take(np.argsort(is_last, kind="stable")))
    return result, (num_underfilled, int(np.count_nonzero(is_last)))


def _pack_tokens(items: Items, settings: PlanSettings) -> PackResult[Packing]:
    """Pack by tokens only, each item with its aligned length."""
    lengths = items.sizes
    capacity, seed, epoch = settings.usable, settings.seed, settings.epoch
    counts = Histogram.of(lengths, at_most=capacity)
    bound = lower_bound(counts, capacity=capacity)
    algorithm = ALGORITHMS[settings.algorithm]
    if algorithm.in_order is not None:
        return PackResult(algorithm.in_order(lengths, capacity=capacity), bound)
    options = CountOptions(
        capacity,
        phases=settings.phases,
        time_limit=settings.time_limit,
        num_packs=settings.num_packs,
    )
    result = algorithm.counts_packer()(counts, options, bound)
    # Counts do not say which sample goes where: samples of equal length are exchangeable.
    orders = seeded_orders(lengths, counts, result.packs.num_packs, seed=seed, epoch=epoch)
    return PackResult(result.packs.assign(*orders), result.bound, result.outcome)


def _pack_budgets(items: Items, settings: PlanSettings) -> PackResult[Packing]:
    """Pack under several budgets."""
    result = _pack_vectors(items.sizes, items, settings)
    if settings.seed is None:
        return result
    order = np.arange(len(result.packs))
    stream = generator(seed=settings.seed, epoch=settings.epoch, purpose="pack order")
    shuffle_classes(order, np.array([len(order)]), stream)
    return replace(result, packs=result.packs.take(order))


def _pack_vectors(sizes: AnyIntArray, items: Items, settings: PlanSettings) -> PackResult[Packing]:
    pack = loaded(BUDGET_PACKER)
    result: PackResult[Packing] = pack(sizes, capacities=items.capacities, seed=settings.seed or 0)
    return result


def _make_plan(
    table: LengthTable,
    items: Items,
    result: PackResult[Packing],
    settings: PlanSettings,
    drawn: Mapping[str, Any] | None = None,
    ledger: Ledger | None = None,
    sharing: Any = None,
) -> Plan:
    packing, segments = result.packs, items.segments
    if items.groups is not None and sharing is None:
        packing = items.groups.to_samples(packing)
    ledger = ledger or ledger_of(table, segments, settings)
    # Rows of the segments, in the order of the packs.
    rows = packing.items
    starts = np.broadcast_to(np.zeros(1, dtype=np.int32), rows.shape)
    if segments.starts is not None:
        starts = segments.starts[rows]
    arrays: dict[str, Any] = {"offsets": packing.offsets, "starts": starts}
    if sharing is not None:
        arrays, rows, ledger = sharing.arrays, sharing.rows, sharing.account(ledger)
    sample_ids = rows
    if segments.sample_ids is not None:
        sample_ids = segments.sample_ids[rows].astype(positions_type(len(table)), copy=False)
    truncated = _NONE_TRUNCATED
    # A sample that lost its beginning ends where its segment ends: its length follows from the
    # packs.
    if ledger.samples_truncated and settings.overflow_policy is Overflow.TRUNCATE:
        ids = np.flatnonzero(table.tokens > settings.longest_segment)
        if table.group_size > 1:
            ids = segments.ids()[segments.lengths < table.tokens[segments.ids()]]
        truncated = Truncated(ids, table.tokens[ids])
    return Plan(
        capacity=settings.capacity,
        **arrays,
        sample_ids=sample_ids,
        find_lengths=lambda: segments.lengths[rows] if sharing is None else sharing.lengths,
        dropped_ids=segments.dropped_ids,
        truncated=truncated,
        ledger=ledger,
        settings=settings,
        outcome=replace(
            result.outcome,
            dropped_by=items.dropped_by,
            groups=items.fingerprint_of_groups,
            drawn=drawn or {},
        ),
        bound=result.bound,
        find_length_fingerprint=lambda: table.fingerprint,
    )
