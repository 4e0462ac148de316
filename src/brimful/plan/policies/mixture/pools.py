"""Pools of elements to draw, made from the segments that the policies left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from brimful.plan.packing import Packing
from brimful.plan.policies.mixture.draw import MixtureDraw
from brimful.plan.policies.mixture.queue import Pool
from brimful.plan.policies.mixture.spec import MixOrder, Mixture, MixUnit, Weighting
from brimful.plan.policies.overflow import Segments
from brimful.ragged import offsets_of, ranges, sums_of
from brimful.typing import AnyIntArray, Int64Array, Offsets


@dataclass(frozen=True, eq=False)
class MixedSamples:
    """The samples of a mixture that can be packed, and their segments.

    Dropped and rejected samples are not in any pool: shares refer to packed samples.

    Attributes:
        names: names of the sources.
        begins: ``int64[num_sources + 1]``, first sample of each source, counting dropped and rejected samples.
        ids: ``int64[num_samples]``, ascending.
        segment_offsets: ``int64[num_samples + 1]``, segments of each sample.
        bounds: ``int64[num_sources + 1]``, positions in ``ids`` where sources begin.
        tokens: ``int64[num_samples]``, tokens of each sample in its segments.
        uses: ``int64[num_samples]``, how often each sample was consumed before.
    """

    names: Sequence[str]
    begins: Offsets
    ids: Int64Array
    segment_offsets: Offsets
    bounds: Int64Array
    tokens: Int64Array
    uses: Int64Array

    @classmethod
    def of(cls, segments: Segments, names: Sequence[str], sources: Offsets, uses: Int64Array) -> MixedSamples:
        """Find the samples among the segments.

        Args:
            segments: segments to pack, by ascending sample.
            names: names of the sources.
            sources: ``int64[num_sources + 1]``, first sample of each source.
            uses: ``int64[num_samples]``, for all samples.
        """
        segment_ids = segments.ids()
        edges = np.flatnonzero(np.r_[True, segment_ids[1:] != segment_ids[:-1]]) if len(segment_ids) else segment_ids
        offsets = np.r_[edges, len(segment_ids)].astype(np.int64)
        ids = segment_ids[edges].astype(np.int64)
        bounds = np.searchsorted(ids, sources)
        return cls(names, sources, ids, offsets, bounds, sums_of(segments.lengths, offsets), uses[ids])

    def pools(self, mixture: Mixture) -> list[Pool]:
        """Return the samples of each source, to draw from."""
        pools = []
        for number, name in enumerate(self.names):
            part = slice(int(self.bounds[number]), int(self.bounds[number + 1]))
            tokens = self.tokens[part]
            sizes = tokens if mixture.unit is MixUnit.TOKENS else np.ones_like(tokens)
            pools.append(Pool(name, sizes, tokens, self.uses[part]))
        return pools

    def rows(self, result: MixtureDraw) -> Int64Array:
        """Return the segments of all draws, in the order of the draws."""
        samples = self.bounds[result.sources] + result.elements
        sizes = np.diff(self.segment_offsets)
        return ranges(self.segment_offsets[:-1][samples], sizes[samples])

    def draws_of(self, rows: AnyIntArray) -> Int64Array:
        """Count how often each sample is among the segments: ``int64[num_samples]``."""
        times = np.bincount(rows, minlength=int(self.segment_offsets[-1]))
        draws: Int64Array = times[self.segment_offsets[:-1]].astype(np.int64)
        return draws

    def after(self, result: MixtureDraw) -> MixedSamples:
        """Return the samples with these draws counted as consumed."""
        counts = np.bincount(self.bounds[result.sources] + result.elements, minlength=len(self.ids))
        return replace(self, uses=self.uses + counts.astype(np.int64))


@dataclass(frozen=True, eq=False)
class MixedPacks:
    """Packs of each source, to draw from.

    Attributes:
        packs: packs of all sources, one source after the other; items are segments.
        bounds: ``int64[num_sources + 1]``, first pack of each source.
        pools: pool of each source.
    """

    packs: Packing
    bounds: Int64Array
    pools: list[Pool]

    @classmethod
    def of(
        cls,
        packings: Sequence[tuple[int, int, Packing]],
        lengths: AnyIntArray,
        names: Sequence[str],
        mixture: Mixture,
    ) -> MixedPacks:
        """Join packings, each with samples of one source that were consumed equally often.

        Args:
            packings: number of the source, how often its samples were consumed, and packs; by ascending source.
            lengths: ``int[num_segments]``.
            names: names of the sources.
            mixture: the request.
        """
        nothing = np.empty(0, dtype=np.int64)
        num_packs = [len(packing) for _, _, packing in packings]
        packs = Packing(
            offsets_of(np.concatenate([nothing, *(packing.sizes for _, _, packing in packings)])),
            np.concatenate([nothing, *(packing.items for _, _, packing in packings)]),
        )
        sources, uses = (
            np.repeat(np.array([packing[column] for packing in packings], dtype=np.int64), num_packs)
            for column in (0, 1)
        )
        tokens = sums_of(lengths[packs.items], packs.offsets)
        bounds = np.searchsorted(sources, np.arange(len(names) + 1))
        pools = []
        for number, name in enumerate(names):
            part = slice(int(bounds[number]), int(bounds[number + 1]))
            sizes = tokens[part] if mixture.unit is MixUnit.TOKENS else np.ones_like(tokens[part])
            pools.append(Pool(name, sizes, tokens[part], uses[part]))
        return cls(packs, bounds, pools)

    def drawn(self, result: MixtureDraw) -> Packing:
        """Return the packs that were drawn, in the order of the draws."""
        return self.packs.take(self.bounds[result.sources] + result.elements)

    def after(self, result: MixtureDraw) -> MixedPacks:
        """Return the packs with these draws counted as consumed."""
        counts = np.bincount(self.bounds[result.sources] + result.elements, minlength=len(self.packs))
        bounds = self.bounds.tolist()
        pools = [
            replace(pool, uses=pool.uses + counts[begin:end])
            for pool, begin, end in zip(self.pools, bounds[:-1], bounds[1:], strict=True)
        ]
        return MixedPacks(self.packs, self.bounds, pools)


def mixture_record(
    samples: MixedSamples,
    mixture: Mixture,
    draws: Int64Array,
    *,
    packs: Int64Array | None = None,
    targets: Int64Array | None = None,
    exhausted: Sequence[str] = (),
    is_short: bool = False,
) -> dict[str, Any]:
    """Return the outcome of a mixture for JSON: for each source, the requested share and the realized share.

    Args:
        samples: samples of the sources.
        mixture: the request.
        draws: ``int64[num_samples]``, how often each sample is packed.
        packs: ``int64[num_sources]``, packs of each source; None if sources share packs.
        targets: ``int64[num_samples]``, targets of the loss in the segments of each sample, to which shares of tokens
            refer in a mixture weighted by loss. None if they were not measured.
        exhausted: names of sources that ran out.
        is_short: true if all sources ran out before the target.
    """
    records: list[dict[str, Any]] = []
    exhausted_names = set(exhausted)
    for number, name in enumerate(samples.names):
        part = slice(int(samples.bounds[number]), int(samples.bounds[number + 1]))
        times = draws[part]
        distinct = int(np.count_nonzero(times))
        record: dict[str, Any] = {
            "source": name,
            "begin": int(samples.begins[number]),
            "requested": mixture.shares[name],
            "samples": len(times),
            "draws": int(times.sum()),
            "distinct": distinct,
            "left": len(times) - distinct,
            "tokens": int((times * samples.tokens[part]).sum()),
        }
        if packs is not None:
            record["packs"] = int(packs[number])
        if name in exhausted_names:
            record["exhausted"] = True
        records.append(record)
    unit = "tokens" if mixture.unit is MixUnit.TOKENS else "draws"
    if mixture.order is MixOrder.PACK_THEN_MIX and packs is not None and unit == "draws":
        unit = "packs"
    amounts = [record[unit] for record in records]
    if mixture.weighting is Weighting.LOSS and unit == "tokens" and targets is not None:
        amounts = sums_of(targets, samples.bounds).tolist()
    total = max(1, sum(amounts))
    for record, amount in zip(records, amounts, strict=True):
        record["realised"] = amount / total
        if mixture.weighting is Weighting.LOSS:
            record["factor"] = record["requested"] / record["realised"] if record["realised"] else 0.0
    return {"sources": records, **({"short": True} if is_short else {})}


def offsets_of_packs(packing: Packing) -> tuple[Int64Array, Packing]:
    """Return the items of packs in their order, and the same packs over these items: each position once.

    >>> rows, packs = offsets_of_packs(Packing(np.array([0, 2, 3]), np.array([4, 0, 4])))
    >>> rows.tolist(), packs.as_lists()
    ([4, 0, 4], [[0, 1], [2]])
    """
    rows = packing.items.astype(np.int64)
    return rows, Packing(offsets_of(packing.sizes), np.arange(len(rows)))
