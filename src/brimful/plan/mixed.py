"""Packs of a mixture: samples of its sources are drawn and packed, or packs of each source are
drawn.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, TypeAlias

import numpy as np

from brimful.base.checks import check_type, whole_number
from brimful.base.ragged import offsets_of, sums_of
from brimful.base.rng import generator
from brimful.base.typing import AnyIntArray, Int64Array, Offsets
from brimful.base.wording import setting
from brimful.errors import PlanMismatchError, SettingsError
from brimful.lengths.table import LengthTable
from brimful.plan.items import Items
from brimful.plan.ledger import Ledger, ledger_of, targets_of
from brimful.plan.packing import Packing, PackResult
from brimful.plan.plan_settings import PlanSettings
from brimful.plan.policies.mixture_draw import Elements, MixedSamples, MixtureDraw, draw
from brimful.plan.policies.mixture_request import MixOrder, Mixture, Weighting
from brimful.plan.policies.proportions import mixture_record

Pack: TypeAlias = Callable[[Items, PlanSettings], PackResult[Packing]]
"""The packing of items by the algorithm of the settings."""


@dataclass(frozen=True)
class MixedPacks:
    """Packs of a mixture.

    Attributes:
        items: the items of the packs; an item that is drawn several times is several items.
        result: packs of these items.
        record: requested and realized shares, for ``PlanOutcome.mixed``.
        ledger: account of the plan; None if every sample is packed once.
    """

    items: Items
    result: PackResult[Packing]
    record: dict[str, Any]
    ledger: Ledger | None = None


def pack_mixture(
    table: LengthTable,
    items: Items,
    samples: MixedSamples,
    settings: PlanSettings,
    *,
    are_uses_known: bool,
    pack: Pack,
) -> MixedPacks:
    """Draw the samples or packs of a mixture, and pack.

    Pure: no I/O.

    Args:
        table: all input samples.
        items: the items that can be packed.
        samples: the samples of these items, by source.
        settings: settings of the plan; the seed and the epoch choose the draws.
        are_uses_known: true if ``samples.uses`` says what was consumed; otherwise the draws of
            earlier epochs are repeated first, to continue where they ended.
        pack: function that packs items.
    """
    segments, mixture = items.segments, settings.mixture
    assert mixture is not None
    if mixture.weighting is Weighting.LOSS:
        targets = None
        if table.targets is not None:
            targets = sums_of(
                targets_of(segments, table.targets, table.tokens), samples.segment_offsets
            )
        record = mixture_record(
            samples, mixture, np.ones(len(samples.uses), dtype=np.int64), targets=targets
        )
        return MixedPacks(items, pack(items, settings), record)
    mixing = _Mixing(items, settings, mixture, pack)
    num_epochs_before = 0 if are_uses_known or mixture.replacement else settings.epoch
    mix = mixing.draw_packs if mixture.order is MixOrder.PACK_THEN_MIX else mixing.draw_samples
    result, draws = mix(samples, num_epochs_before)
    rows = result.packs.items.astype(np.int64)
    record = mixture_record(samples, mixture, samples.draws_of(rows), result=draws)
    times = np.bincount(rows, minlength=len(segments.lengths)).astype(np.int64)
    drawn_items = items.take(rows)
    bound = max(1, -(-int(drawn_items.segments.lengths.sum(dtype=np.int64)) // settings.usable))
    # The same packs over the drawn items: each position once.
    packing = Packing(offsets_of(result.packs.sizes), np.arange(len(rows)))
    return MixedPacks(
        drawn_items,
        PackResult(packing, min(bound, len(packing)), result.outcome),
        record,
        ledger_of(table, segments, settings, times=times),
    )


_Drawn: TypeAlias = tuple[PackResult[Packing], MixtureDraw]
"""Packs of the items of all samples, of which some are repeated and some absent; and the draws."""


@dataclass(frozen=True)
class _Mixing:
    """The two orders of drawing and packing."""

    items: Items
    settings: PlanSettings
    mixture: Mixture
    pack: Pack

    @property
    def seed(self) -> int:
        return self.settings.seed or 0

    def packs_of(self, rows: Int64Array) -> PackResult[Packing]:
        """Pack some rows of the items; the packs name these rows."""
        result = self.pack(self.items.take(rows), self.settings)
        return replace(result, packs=Packing(result.packs.offsets, rows[result.packs.items]))

    def draw_samples(self, samples: MixedSamples, num_epochs_before: int = 0) -> _Drawn:
        """Draw samples, then pack them together."""
        mixture, epoch = self.mixture, self.settings.epoch
        for number in range(num_epochs_before):
            if mixture.num_packs is None:
                samples = samples.after(draw(samples, mixture, seed=self.seed, epoch=number))
            else:
                result, _ = replace(
                    self, settings=replace(self.settings, epoch=number)
                ).draw_samples(samples)
                samples = replace(samples, uses=samples.uses + samples.draws_of(result.packs.items))

        def drawn(num_tokens: int | None) -> _Drawn:
            draws = draw(samples, mixture, seed=self.seed, epoch=epoch, num_tokens=num_tokens)
            return self.packs_of(samples.rows(draws.elements)), draws

        if mixture.num_packs is None:
            return drawn(None)
        # This many tokens fill the wanted packs or more; surplus packs hold samples that were drawn
        # too early.
        tokens = mixture.num_packs * self.settings.usable
        result, draws = drawn(tokens)
        num_packs = len(result.packs)
        if num_packs > 1.01 * mixture.num_packs:
            closer = drawn(math.ceil(1.005 * tokens * mixture.num_packs / num_packs))
            if len(closer[0].packs) >= mixture.num_packs:
                result, draws = closer
        num_packs = len(result.packs)
        if num_packs > mixture.num_packs:
            # Random packs are left out: any other choice would prefer some lengths.
            order = generator(
                seed=self.seed, epoch=epoch, purpose="packs of a mixture"
            ).permutation(num_packs)
            result = replace(result, packs=result.packs.take(np.sort(order[: mixture.num_packs])))
        return result, draws

    def draw_packs(self, samples: MixedSamples, num_epochs_before: int) -> _Drawn:
        """Pack each source separately, then draw packs.

        Samples that were consumed equally often share packs, so that a pack was consumed as often
        as its samples. The packs of a source are the same in all epochs: the next epoch draws what
        the last one left.
        """
        same_packs = replace(self, settings=replace(self.settings, epoch=0))
        # Empty arrays first: a mixture without samples is refused by the draw.
        nothing = np.empty(0, dtype=np.int64)
        packs, sources, uses, outcomes = (
            Packing(np.zeros(1, dtype=np.int64), nothing),
            [nothing],
            [nothing],
            [],
        )
        for source, (begin, end) in enumerate(pairwise(samples.bounds.tolist())):
            for num_uses in np.unique(samples.uses[begin:end]).tolist():
                members = begin + np.flatnonzero(samples.uses[begin:end] == num_uses)
                result = same_packs.packs_of(samples.rows(members))
                packs = packs.joined(result.packs)
                sources.append(np.full(len(result.packs), source))
                uses.append(np.full(len(result.packs), num_uses))
                outcomes.append(result.outcome)
        bounds = np.searchsorted(np.concatenate(sources), np.arange(len(samples.names) + 1))
        tokens = sums_of(self.items.segments.lengths[packs.items], packs.offsets)
        elements = Elements(samples.names, bounds, tokens, np.concatenate(uses))
        mixture = self.mixture
        if mixture.num_packs is not None:
            mixture = replace(mixture, num_packs=None, num_samples=mixture.num_packs)
        for number in range(num_epochs_before):
            elements = elements.after(draw(elements, mixture, seed=self.seed, epoch=number))
        draws = draw(elements, mixture, seed=self.seed, epoch=self.settings.epoch)
        return PackResult(packs.take(draws.elements), 0, outcomes[0]), draws


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
        parts = table.provenance.get("parts") or []
        sources = {str(name): int(count) for name, count in parts}
        if len(sources) != len(parts) or not parts:
            raise SettingsError(
                "the lengths do not say which sample is of which source: give "
                f"{setting('sources')}, the number of samples of each source"
            )
    check_type("sources", sources, Mapping, "a mapping such as {'chat': 7473, 'code': 1319}")
    for name in sources:
        if name not in mixture.weights:
            raise SettingsError(
                f"{setting('mixture')} has no weight for source {name}: give one, or leave the "
                "source out of the data"
            )
    for name in mixture.weights:
        if name not in sources:
            raise SettingsError(
                f"{setting('mixture')} has a weight for {name}, and the sources are "
                f"{', '.join(sources)}"
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
