"""Packs of a mixture: samples of its sources are drawn and packed, or packs of each source are
drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import pairwise
from typing import TypeAlias

import numpy as np

from brimful.base.checks import check_type, whole_number
from brimful.base.ragged import offsets_of, sums_of
from brimful.base.rng import generator
from brimful.base.typing import AnyIntArray, Int64Array, Offsets
from brimful.base.wording import setting
from brimful.errors import PlanMismatchError, SettingsError
from brimful.lengths.table import LengthTable
from brimful.mixtures.draws import Elements, MixtureDraw, draw
from brimful.mixtures.mixture import MixOrder, Mixture, Weighting
from brimful.mixtures.proportions import mixture_record
from brimful.plan.drawn import Drawn, Pack
from brimful.plan.items import Items
from brimful.plan.ledger import ledger_of, targets_of
from brimful.plan.packing import Packing, PackResult, PlanOutcome
from brimful.plan.plan_settings import PlanSettings

PackRows: TypeAlias = Callable[[Int64Array, int], PackResult[Packing]]
"""The packing of some rows of the items in an epoch; the packs name these rows."""


def pack_mixture(
    table: LengthTable,
    items: Items,
    settings: PlanSettings,
    *,
    sources: Mapping[str, int] | None,
    uses: AnyIntArray | None,
    pack: Pack,
) -> Drawn:
    """Draw the samples or packs of a mixture, and pack.

    Pure: no I/O.

    Args:
        table: all input samples.
        items: the items that can be packed.
        settings: settings of the plan; the seed and the epoch choose the draws.
        sources: see ``members_of``.
        uses: how often each sample was consumed. None: the draws of earlier epochs are repeated
            first, to continue where they ended.
        pack: function that packs items.

    Returns:
        * The items of the packs; an item that is drawn several times is several items.
        * Packs of these items.
        * Requested and realized shares, for ``PlanOutcome.drawn``.
        * The account of the plan; None if every sample is packed once.
    """
    segments, mixture, epoch = items.segments, settings.draw, settings.epoch
    assert isinstance(mixture, Mixture)
    if items.groups is not None and mixture.weighting is Weighting.DRAWS:
        raise SettingsError(
            f"{setting('mixture')} draws single samples, and the samples of a group, or of a row "
            "of preferences or KTO, stay together: leave one out, or use weighting loss"
        )
    names, starts = members_of(table, mixture, sources)
    counts = as_uses(uses, len(table))
    segment_ids = segments.ids()
    edges = np.flatnonzero(np.diff(segment_ids, prepend=-1))
    offsets = np.r_[edges, len(segment_ids)].astype(np.int64)
    ids = segment_ids[edges]
    samples = Elements(
        names,
        np.searchsorted(ids, starts),
        sums_of(segments.lengths, offsets),
        counts[ids],
        offsets,
    )
    if mixture.weighting is Weighting.LOSS:
        targets = None
        if table.targets is not None:
            in_segments = targets_of(segments, table.targets, table.tokens)
            targets = sums_of(in_segments, offsets)
        record = mixture_record(
            samples, starts, mixture, np.ones_like(samples.uses), targets=targets
        )
        return Drawn(items, pack(items, settings), record, None)

    def pack_rows(rows: Int64Array, epoch: int) -> PackResult[Packing]:
        result = pack(items.take(rows), replace(settings, epoch=epoch))
        return replace(result, packs=Packing(result.packs.offsets, rows[result.packs.items]))

    seed, elements = settings.seed or 0, samples
    if mixture.order is MixOrder.PACK_THEN_MIX:
        result, elements = _pack_sources(items, samples, pack_rows)
        if mixture.num_packs is not None:
            mixture = replace(mixture, num_packs=None, num_samples=mixture.num_packs)
    for past_epoch in range(0 if uses is not None or mixture.replacement else epoch):
        if mixture.num_packs is None:
            draws = draw(elements, mixture, seed=seed, epoch=past_epoch)
            num_uses = np.bincount(draws.elements, minlength=len(elements.uses))
        else:
            num_uses = samples.draws_of(
                _draw_packs(elements, mixture, settings, past_epoch, pack_rows)[0].packs.items
            )
        elements = replace(elements, uses=elements.uses + num_uses)
    if mixture.num_packs is not None:
        result, draws = _draw_packs(elements, mixture, settings, epoch, pack_rows)
    else:
        draws = draw(elements, mixture, seed=seed, epoch=epoch)
        if mixture.order is MixOrder.PACK_THEN_MIX:
            result = replace(result, packs=result.packs.take(draws.elements))
        else:
            result = pack_rows(samples.rows(draws.elements), epoch)
    rows = result.packs.items.astype(np.int64)
    record = mixture_record(samples, starts, mixture, samples.draws_of(rows), result=draws)
    times = np.bincount(rows, minlength=len(segments.lengths)).astype(np.int64)
    drawn_items = items.take(rows)
    bound = max(1, -(-int(drawn_items.segments.lengths.sum(dtype=np.int64)) // settings.usable))
    # The same packs over the drawn items: each position once.
    packing = Packing(offsets_of(result.packs.sizes), np.arange(len(rows)))
    result = PackResult(packing, min(bound, len(packing)), result.outcome)
    ledger = ledger_of(table, segments, settings, times=times)
    return Drawn(drawn_items, result, record, ledger)


def _draw_packs(
    samples: Elements, mixture: Mixture, settings: PlanSettings, epoch: int, pack_rows: PackRows
) -> tuple[PackResult[Packing], MixtureDraw]:
    """Draw samples and pack them together, until they fill the number of packs of the mixture.

    Returns:
        Packs of the items of all samples, of which some are repeated and some absent; the draws.
    """
    seed, num_wanted = settings.seed or 0, mixture.num_packs
    assert num_wanted is not None

    def drawn(num_tokens: int) -> tuple[PackResult[Packing], MixtureDraw]:
        draws = draw(samples, mixture, seed=seed, epoch=epoch, num_tokens=num_tokens)
        return pack_rows(samples.rows(draws.elements), epoch), draws

    # This many tokens fill the wanted packs or more; surplus packs hold samples that were drawn too
    # early.
    num_tokens = num_wanted * settings.usable
    result, draws = drawn(num_tokens)
    if len(result.packs) > 1.01 * num_wanted:
        closer = drawn(math.ceil(1.005 * num_tokens * num_wanted / len(result.packs)))
        if len(closer[0].packs) >= num_wanted:
            result, draws = closer
    num_packs = len(result.packs)
    if num_packs > num_wanted:
        # Random packs are left out: any other choice would prefer some lengths.
        random = generator(seed=seed, epoch=epoch, purpose="packs of a mixture")
        pack_ids = np.sort(random.permutation(num_packs)[:num_wanted])
        result = replace(result, packs=result.packs.take(pack_ids))
    return result, draws


def _pack_sources(
    items: Items, samples: Elements, pack_rows: PackRows
) -> tuple[PackResult[Packing], Elements]:
    """Pack each source separately.

    Samples that were consumed equally often share packs, so that a pack was consumed as often as
    its samples. The packs of a source are the same in all epochs: the next epoch draws what the
    last one left.

    Returns:
        The packs of all sources; the same as elements to draw from.
    """
    # Empty arrays first: a mixture without samples is refused by the draw.
    nothing = np.empty(0, dtype=np.int64)
    packs, sources, uses = Packing(np.zeros(1, dtype=np.int64), nothing), [nothing], [nothing]
    outcome = PlanOutcome()
    for source, (start, end) in enumerate(pairwise(samples.bounds.tolist())):
        for num_uses in np.unique(samples.uses[start:end]).tolist():
            members = start + np.flatnonzero(samples.uses[start:end] == num_uses)
            result = pack_rows(samples.rows(members), 0)
            outcome = outcome if len(packs) else result.outcome
            packs = packs.joined(result.packs)
            sources.append(np.full(len(result.packs), source))
            uses.append(np.full(len(result.packs), num_uses))
    bounds = np.searchsorted(np.concatenate(sources), np.arange(len(samples.names) + 1))
    tokens = sums_of(items.segments.lengths[packs.items], packs.offsets)
    return (
        PackResult(packs, 0, outcome),
        Elements(samples.names, bounds, tokens, np.concatenate(uses), packs.offsets),
    )


def members_of(
    table: LengthTable, mixture: Mixture, sources: Mapping[str, int] | None
) -> tuple[list[str], Offsets]:
    """Return names of the sources in the order of the samples, and the first sample of each.

    Args:
        table: lengths of all samples.
        mixture: mixture with a weight for each source.
        sources: number of samples of each source, by name and in the order of the table; None for
            the measured files.

    Returns:
        Names, and ``int64[num_sources + 1]``: source ``i`` has the samples
        ``offsets[i] … offsets[i + 1] - 1``.

    Raises:
        SettingsError: a source without a weight, or a weight without a source.
        PlanMismatchError: the sources and the table differ in the number of samples.

    >>> table = LengthTable.from_lengths([3, 5, 4])
    >>> members_of(table, Mixture(weights={"chat": 3, "code": 1}), {"code": 2, "chat": 1})
    (['code', 'chat'], array([0, 2, 3]))
    """
    if sources is None:
        entries = table.provenance.get("parts") or []
        sources = {str(name): int(count) for name, count in entries}
        if len(sources) != len(entries) or not entries:
            raise SettingsError(
                "the lengths do not say which sample is of which source: give "
                f"{setting('sources')}, the number of samples of each source"
            )
    check_type("sources", sources, Mapping, "a mapping such as {'chat': 7473, 'code': 1319}")
    if sources.keys() != mixture.weights.keys():
        raise SettingsError(
            f"{setting('mixture')} has weights for {', '.join(mixture.weights)}, and the sources "
            f"are {', '.join(sources)}: give one weight for each source"
        )
    counts = [
        whole_number(f"the number of samples of {name}", count, minimum=1)
        for name, count in sources.items()
    ]
    if sum(counts) != len(table):
        raise PlanMismatchError(
            f"the sources of the mixture have {sum(counts):,} samples and the lengths "
            f"{len(table):,}"
        )
    return list(sources), offsets_of(counts)


def as_uses(uses: AnyIntArray | None, num_samples: int) -> Int64Array:
    """Return how often each sample was consumed: ``int64[num_samples]``, zeros for None.

    Raises:
        SettingsError: a wrong number of samples, or not counts.
    """
    if uses is None:
        return np.zeros(num_samples, dtype=np.int64)
    array = np.asarray(uses)
    if (
        array.shape != (num_samples,)
        or array.dtype.kind not in "iu"
        or (num_samples and int(array.min()) < 0)
    ):
        raise SettingsError(
            f"{setting('uses')} must hold how often each of the {num_samples:,} samples was "
            f"consumed and has shape {array.shape} of {array.dtype}"
        )
    return array.astype(np.int64)
