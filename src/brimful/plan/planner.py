"""Entry point of planning: from lengths to items, packs and a plan."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from brimful.arguments import CAPACITY_NAMES, understands
from brimful.errors import PlanMismatchError, SettingsError
from brimful.lengths.table import LengthTable, as_lengths
from brimful.messages import setting
from brimful.plan.algorithms import CountOptions
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.fit.lower_bound import lower_bound
from brimful.plan.items import Items, prepare_items
from brimful.plan.ledger import Ledger, ledger_of, ledger_of_draws
from brimful.plan.order.exchange import exchange_segments
from brimful.plan.order.shuffle import companion_order, pack_order, seeded_orders
from brimful.plan.order.underfilled import repack_underfilled
from brimful.plan.packing import Packing, PackResult
from brimful.plan.phased import Recipe
from brimful.plan.plan import Plan
from brimful.plan.policies.alignment import UNALIGNED, Alignment
from brimful.plan.policies.groups import check_beginnings_stay
from brimful.plan.policies.mixture.draw import MixtureDraw, draw
from brimful.plan.policies.mixture.members import as_uses, count_uses, members_of
from brimful.plan.policies.mixture.pools import MixedPacks, MixedSamples, mixture_record, offsets_of_packs
from brimful.plan.policies.mixture.spec import MixOrder, Mixture, Weighting
from brimful.plan.policies.mixture.stages import MixtureStage
from brimful.plan.policies.no_target import NoTarget
from brimful.plan.policies.overflow import Overflow, Segments
from brimful.plan.policies.truncated import Truncated
from brimful.plan.settings import PlanSettings
from brimful.plan.vector.pack_vectors import pack_vectors
from brimful.ragged import positions_type, ranges, sums_of
from brimful.rng import generator
from brimful.typing import AnyIntArray, Int64Array

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
    alignment: Alignment | int = UNALIGNED,
    groups: AnyIntArray | Sequence[int] | None = None,
    min_fill: float = 0.0,
    phases: Recipe | str | None = None,
    mix: bool = False,
    seed: int | None = 0,
    epoch: int = 0,
    time_limit: float | None = None,
    num_packs: int | None = None,
    mixture: Mixture | None = None,
    sources: Mapping[str, int] | None = None,
    uses: AnyIntArray | None = None,
) -> Plan:
    """Decide which samples share which pack, from their lengths alone.

    Pure: no I/O; the same arguments give the same plan, on any machine and with any number of processes. If a search
    was needed (``Plan.outcome.solver``), this requires the same solver.

    Args:
        lengths: a ``LengthTable``, or whole numbers: tokens of each sample.
        capacity: maximum tokens of a pack, from 1 to 2**31 - 1. Also accepted as ``max_length``, ``packing_length``
            and ``seq_length``.
        algorithm: one of ``ALGORITHMS``. ``optimal`` searches for as few packs as the lengths allow and proves how
            far from that it is; ``auto`` does so only if best fit decreasing is over 0.1 % above the bound, and
            packs under several budgets if any are given; ``next_fit``, ``first_fit``, ``best_fit`` and ``worst_fit``
            take the samples in their order; ``phased`` follows a recipe; ``concat_split`` cuts the stream of all
            tokens; ``spread`` makes ``num_packs`` even packs. ``Plan.outcome`` tells how far it came. Names of other
            libraries are accepted: ``bfd``, ``ffd``, ``wrapped``, and ``sequential`` for next fit, whose packs keep the
            order of the samples.
        overflow: policy for samples longer than a pack (``Overflow``).
        no_target: policy for samples without a target of the loss (``NoTarget``), if the table has targets.
        budgets: limits of other quantities in a pack: names of columns of the table, ``samples``, and
            ``squares`` (the sum of length², the cost of attention). Never exceeded.
        alignment: multiples that segments and rows are padded up to; a number is a multiple for each segment
            (``Alignment.of_parallelism`` for context, sequence and FP8 parallelism). Plans count padded lengths.
        groups: ``int64[num_samples]``: samples of the same number, from 0, stay together and in order (preference
            pairs, episodes); a sample with -1 is alone.
        min_fill: share of the capacity below which packs are postponed: their samples are packed once more, and these
            packs come last. Nothing is dropped.
        phases: steps of ``phased``, as a ``Recipe`` or its text (docs/phased-recipe.md); ``Recipe.default()`` if None.
            ``Plan.outcome`` tells what each phase did.
        mix: exchange segments between packs until the packs look like the data, at no cost in fill (``plan.mix``).
        seed: shuffles samples of equal length and the order of the packs, at no cost in fill, so that packs are
            not sorted by length; None keeps the textbook order. Algorithms that keep the order of the samples
            ignore it.
        epoch: gives each pass over the data its own combinations and order of packs: plan again for each epoch. The
            membership of packs changes with it only if it is given.
        time_limit: seconds that ``optimal`` (60 if None) and ``auto`` may search. A search that is cut short returns
            its best packs, which may differ on a slower machine: then save the plan rather than make it again. If
            None, ``auto`` stops after a fixed number of operations instead, and its plan is the same everywhere.
        num_packs: exact number of packs, for ``spread``; None for as few as best fit decreasing takes.
        mixture: draw samples of several sources by weight (``Mixture``), some several times and others later; None
            packs every sample once. ``Plan.outcome.mixed`` has the resulting shares.
        sources: number of samples of each source of the mixture, by name and in the order of the table; None for the
            files of the table.
        uses: ``int[num_samples]``, how often each sample was consumed before (``consumed_samples``): the mixture
            continues from there. None: from where the epochs before this one would have ended.

    Raises:
        InvalidLengthsError: no samples, a length below 1, a fraction, or a ``num_packs`` that the samples cannot fill.
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
        mixture=mixture,
    )
    return plan_with(lengths, settings, groups=groups, sources=sources, uses=uses)


def plan_with(
    lengths: LengthTable | AnyIntArray | Sequence[int],
    settings: PlanSettings,
    *,
    groups: AnyIntArray | Sequence[int] | None = None,
    sources: Mapping[str, int] | None = None,
    uses: AnyIntArray | None = None,
) -> Plan:
    """Plan packs with settings that were made and checked before the lengths are known.

    Pure: no I/O. Arguments and errors are as in ``plan_packs``.

    >>> settings = PlanSettings(capacity=100, algorithm="first_fit_decreasing")
    >>> plan_with([70, 30, 30, 30, 20], settings).num_packs
    2
    """
    table = lengths if isinstance(lengths, LengthTable) else LengthTable({"tokens": as_lengths(lengths)})
    if table.joins_rows:
        check_beginnings_stay(settings.overflow_policy)
    mixture = settings.mixture
    if mixture is None:
        if sources is not None or uses is not None:
            name = "sources" if sources is not None else "uses"
            raise SettingsError(f"{setting(name)} belongs to {setting('mixture')}, which is not given: leave it out")
        items = prepare_items(table, settings, may_reject=table is lengths, groups=groups)
        return _make_plan(table, items, _pack(items, settings), settings)
    if (groups is not None or table.group_size > 1) and mixture.weighting is Weighting.DRAWS:
        name = setting("groups") if groups is not None else "both samples of a row of preferences or KTO"
        raise SettingsError(
            f"{setting('mixture')} draws single samples, and {name} stay together: leave one out, or use weighting loss"
        )
    names, begins = members_of(table, mixture, sources)
    counts = as_uses(uses, len(table))
    items = prepare_items(table, settings, may_reject=table is lengths, groups=groups)
    samples = MixedSamples.of(items.segments, names, begins, counts)
    if mixture.weighting is Weighting.LOSS:
        result = _pack(items, settings)
        draws = np.ones(len(samples.ids), dtype=np.int64)
        targets = _targets_of(table, items.segments, samples)
        record = mixture_record(samples, mixture, draws, targets=targets)
        return _make_plan(table, items, result, settings, mixed=record)
    goes_on = uses is None and not mixture.replacement
    if mixture.order is MixOrder.PACK_THEN_MIX:
        choice = _mix_packs(items, samples, settings, mixture, epochs_before=settings.epoch if goes_on else 0)
    else:
        choice = _mix_samples(items, samples, settings, mixture, epochs_before=settings.epoch if goes_on else 0)
    return _make_mixed_plan(table, items, samples, choice, settings, mixture)


def consumed_samples(plan: Plan, packs: AnyIntArray | Sequence[int], before: AnyIntArray | None = None) -> Int64Array:
    """Count how often each sample was consumed, to continue with another mixture: ``plan_packs(…, uses=…)``.

    Pure: no I/O.

    Args:
        plan: the plan that was trained on.
        packs: the packs that were served, such as ``schedule[:steps]``; -1, an empty place, is skipped.
        before: counts before this plan; None if it was the first.

    Returns:
        ``int64[num_samples]``.

    >>> plan = plan_packs([3, 3, 5, 6, 1, 1], capacity=7, seed=None)
    >>> consumed_samples(plan, [2]).tolist()
    [1, 1, 0, 0, 0, 1]
    """
    pack_ids = np.asarray(packs, dtype=np.int64).reshape(-1)
    pack_ids = pack_ids[pack_ids >= 0]
    if len(pack_ids) and int(pack_ids.max()) >= plan.num_packs:
        raise PlanMismatchError(f"pack {int(pack_ids.max())} was consumed, and the plan has {plan.num_packs:,} packs")
    rows = ranges(plan.offsets[:-1][pack_ids], np.diff(plan.offsets)[pack_ids])
    return count_uses(plan.sample_ids[rows], plan.starts[rows], plan.ledger.samples_in, before)


def plan_stages(
    lengths: LengthTable | AnyIntArray | Sequence[int],
    settings: PlanSettings,
    stages: Sequence[MixtureStage],
    *,
    packs_per_step: int,
    sources: Mapping[str, int] | None = None,
    uses: AnyIntArray | None = None,
) -> list[Plan]:
    """Plan one stage of steps after the other, each with its own weights and capacity.

    Each stage continues where the previous one ended: no sample repeats before the others of its source have been used.

    Pure: no I/O.

    Args:
        lengths: see ``plan_packs``.
        settings: for all stages, with a mixture; stages without a capacity use its capacity.
        stages: from ``mixture_stages``.
        packs_per_step: packs of one step, over all ranks.
        sources, uses: see ``plan_packs``.

    Returns:
        One plan for each stage, of ``num_steps × packs_per_step`` packs unless the sources run out.

    Raises:
        SettingsError: settings without a mixture, or with a mixture that has a target of its own.

    >>> from brimful.plan import Mixture, mixture_stages
    >>> stages = mixture_stages([(0, {"a": 1, "b": 0}), (4, {"a": 0, "b": 1})], num_steps=4, steps_per_stage=2)
    >>> settings = PlanSettings(capacity=4, mixture=Mixture(weights={"a": 1, "b": 1}))
    >>> plans = plan_stages([2] * 40, settings, stages, packs_per_step=4, sources={"a": 20, "b": 20})
    >>> [[source["draws"] for source in plan.outcome.mixed["sources"]] for plan in plans]
    [[14, 2], [6, 10]]
    """
    mixture = settings.mixture
    if mixture is None:
        raise SettingsError(f"stages need a mixture: give {setting('mixture')}")
    if mixture.has_target:
        raise SettingsError(f"{setting('mixture')} has a target, and each stage has its own: leave the target out")
    table = lengths if isinstance(lengths, LengthTable) else LengthTable({"tokens": as_lengths(lengths)})
    plans: list[Plan] = []
    counts = as_uses(uses, len(table))
    for number, stage in enumerate(stages):
        settings_now = replace(
            settings,
            capacity=stage.capacity or settings.capacity,
            mixture=replace(mixture, weights=stage.weights, num_packs=stage.num_steps * packs_per_step),
            epoch=settings.epoch * len(stages) + number,
        )
        plan = plan_with(table, settings_now, sources=sources, uses=counts)
        counts = consumed_samples(plan, np.arange(plan.num_packs), counts)
        plans.append(plan)
    return plans


def _targets_of(table: LengthTable, segments: Segments, samples: MixedSamples) -> Int64Array | None:
    """Count the targets in the segments of each sample: ``int64[num_samples]``; None if they were not measured."""
    if table.targets is None:
        return None
    starts = np.zeros(len(segments.lengths), dtype=np.int64) if segments.starts is None else segments.starts
    in_segment = table.targets.within(segments.ids(), starts, segments.lengths)
    return sums_of(in_segment, samples.segment_offsets)


@dataclass(frozen=True)
class _Mixed:
    """Packs of drawn samples: items are segments of all samples, some repeated and some absent."""

    result: PackResult[Packing]
    draw: MixtureDraw
    packs_by_source: Int64Array | None


def _mix_samples(
    items: Items, samples: MixedSamples, settings: PlanSettings, mixture: Mixture, *, epochs_before: int
) -> _Mixed:
    """Draw samples, then pack them together."""
    seed = settings.seed or 0
    for epoch in range(epochs_before):
        earlier = replace(settings, epoch=epoch)
        if mixture.num_packs is None:
            samples = samples.after(draw(samples.pools(mixture), mixture, seed=seed, epoch=epoch))
        else:
            packs = _mix_samples(items, samples, earlier, mixture, epochs_before=0)
            samples = replace(samples, uses=samples.uses + samples.draws_of(packs.result.packs.items))
    if mixture.num_packs is None:
        draws = draw(samples.pools(mixture), mixture, seed=seed, epoch=settings.epoch)
        return _pack_drawn(items, samples.rows(draws), settings, draws)
    # This many tokens fill the wanted packs or more; surplus packs hold samples that were drawn too early.
    tokens = mixture.num_packs * settings.usable
    choice = _draw_tokens(items, samples, settings, mixture, tokens)
    num_packs = len(choice.result.packs)
    if num_packs > 1.01 * mixture.num_packs:
        closer = _draw_tokens(
            items, samples, settings, mixture, math.ceil(1.005 * tokens * mixture.num_packs / num_packs)
        )
        choice = closer if len(closer.result.packs) >= mixture.num_packs else choice
    return _trimmed(choice, mixture.num_packs, settings)


def _draw_tokens(
    items: Items, samples: MixedSamples, settings: PlanSettings, mixture: Mixture, num_tokens: int
) -> _Mixed:
    draws = draw(samples.pools(mixture), mixture, seed=settings.seed or 0, epoch=settings.epoch, num_tokens=num_tokens)
    return _pack_drawn(items, samples.rows(draws), settings, draws)


def _pack_drawn(items: Items, rows: Int64Array, settings: PlanSettings, draws: MixtureDraw) -> _Mixed:
    result = _pack(items.take(rows), settings)
    packing = Packing(result.packs.offsets, rows[result.packs.items])
    return _Mixed(replace(result, packs=packing), draws, None)


def _trimmed(choice: _Mixed, num_packs: int, settings: PlanSettings) -> _Mixed:
    """Drop random packs beyond a given number: any other choice would prefer some lengths."""
    packing = choice.result.packs
    if len(packing) <= num_packs:
        return choice
    order = generator(seed=settings.seed or 0, epoch=settings.epoch, purpose="packs of a mixture").permutation(
        len(packing)
    )
    subset = packing.take(np.sort(order[:num_packs]))
    return replace(choice, result=replace(choice.result, packs=subset))


def _mix_packs(
    items: Items, samples: MixedSamples, settings: PlanSettings, mixture: Mixture, *, epochs_before: int
) -> _Mixed:
    """Pack each source separately, then draw packs.

    Samples that were consumed equally often share packs, so that a pack was consumed as often as its samples. The packs
    of a source are the same in all epochs: the next epoch draws what the last one left.
    """
    same_packs = replace(settings, epoch=0)
    packings, outcome = [], None
    num_segments = np.diff(samples.segment_offsets)
    for source in range(len(samples.names)):
        part = slice(int(samples.bounds[source]), int(samples.bounds[source + 1]))
        for num_uses in np.unique(samples.uses[part]).tolist():
            members = np.flatnonzero(samples.uses[part] == num_uses) + part.start
            rows = ranges(samples.segment_offsets[members], num_segments[members])
            result = _pack(items.take(rows), same_packs)
            outcome = outcome or result.outcome
            packings.append((source, num_uses, Packing(result.packs.offsets, rows[result.packs.items])))
    packs = MixedPacks.of(packings, items.segments.lengths, samples.names, mixture)
    rule = mixture if mixture.num_packs is None else replace(mixture, num_packs=None, num_samples=mixture.num_packs)
    for epoch in range(epochs_before):
        packs = packs.after(draw(packs.pools, rule, seed=settings.seed or 0, epoch=epoch))
    draws = draw(packs.pools, rule, seed=settings.seed or 0, epoch=settings.epoch)
    by_source = np.bincount(draws.sources, minlength=len(samples.names)).astype(np.int64)
    assert outcome is not None
    return _Mixed(PackResult(packs.drawn(draws), 0, outcome), draws, by_source)


def _make_mixed_plan(
    table: LengthTable,
    items: Items,
    samples: MixedSamples,
    choice: _Mixed,
    settings: PlanSettings,
    mixture: Mixture,
) -> Plan:
    rows, packing = offsets_of_packs(choice.result.packs)
    drawn_items = items.take(rows)
    bound = max(1, -(-int(drawn_items.segments.lengths.sum(dtype=np.int64)) // settings.usable))
    record = mixture_record(
        samples,
        mixture,
        samples.draws_of(rows),
        packs=choice.packs_by_source,
        exhausted=choice.draw.exhausted,
        is_short=choice.draw.is_short,
    )
    times = np.bincount(rows, minlength=len(items.segments.lengths)).astype(np.int64)
    ledger = ledger_of_draws(table, items.segments, times, settings)
    result = PackResult(packing, min(bound, len(packing)), choice.result.outcome)
    return _make_plan(table, drawn_items, result, settings, mixed=record, ledger=ledger)


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
    """Pack by tokens only, each item with its aligned length."""
    lengths = items.sizes
    capacity, seed, epoch = settings.usable, settings.seed, settings.epoch
    parts = Histogram.of_parts(lengths, at_most=capacity)
    counts = Histogram.sum(parts) if len(parts) > 1 else parts[0]
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
        orders = list(seeded_orders(lengths, counts, runs.num_packs, seed=seed, epoch=epoch))
        # Popped, so that the memory of the places is freed as soon as the packs are assigned.
        packing = runs.assign(places=orders.pop(), order=orders.pop())
    if settings.mix and seed is not None:
        packing = exchange_segments(packing, lengths, capacity=capacity, seed=seed, epoch=epoch, alikeness=1.0)
    return PackResult(packing, result.bound, result.outcome, total=int(counts.lengths @ counts.counts))


def _pack_budgets(items: Items, settings: PlanSettings) -> PackResult[Packing]:
    """Pack under several budgets."""
    result = pack_vectors(items.sizes, capacities=items.capacities, seed=settings.seed or 0)
    order = pack_order(len(result.packs), seed=settings.seed, epoch=settings.epoch)
    return result if order is None else replace(result, packs=result.packs.take(order))


def _make_plan(
    table: LengthTable,
    items: Items,
    result: PackResult[Packing],
    settings: PlanSettings,
    *,
    mixed: Mapping[str, Any] | None = None,
    ledger: Ledger | None = None,
) -> Plan:
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
    tokens_packed = result.total if items.sizes is segments.lengths else None
    ledger = ledger or ledger_of(table, segments, settings, tokens_packed=tokens_packed)
    truncated = _NONE_TRUNCATED
    # A sample that lost its beginning ends where its segment ends: its length follows from the packs.
    if ledger.samples_truncated and settings.overflow_policy is Overflow.TRUNCATE:
        ids = np.flatnonzero(table.tokens > settings.usable)
        if table.group_size > 1:
            ids = segments.ids()[segments.lengths < table.tokens[segments.ids()]]
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
        outcome=replace(
            result.outcome, dropped_by=items.dropped_by, groups=items.fingerprint_of_groups, mixed=mixed or {}
        ),
        bound=result.bound,
        find_length_fingerprint=lambda: table.fingerprint,
    )
