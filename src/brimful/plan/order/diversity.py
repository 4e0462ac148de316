"""Diversity of packs, and of the steps made from them, compared with chance.

Decreasing algorithms put similar lengths together. One number shows whether this matters,
``alikeness``: 1 if the segments of a pack are as unrelated as if they had been dealt at random.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from brimful.base.ragged import offsets_of, ranges
from brimful.base.rng import generator
from brimful.base.typing import AnyIntArray, Float64Array, Int64Array, Lengths, Offsets
from brimful.errors import InvalidLengthsError, PlanMismatchError

_CHUNK = 1 << 22
"""Segments, or groups times sources, that are processed together."""


@dataclass(frozen=True)
class Spread:
    """Differences among the packs of a plan, or among its steps, and the differences expected by
    chance.

    By chance: the same segments, dealt at random to groups (packs, or steps) with the same numbers
    of segments.
    Notation: a group g has n_g segments with L_g tokens in total, m_g = L_g / n_g; N segments in
    all, of mean length m and variance s² = sum((l - m)²) / (N - 1).

    Attributes:
        groups: number of packs, or of steps.
        segments: mean number of segments in a group, N / groups.
        segments_cv: standard deviation of this number, as a share of the mean. If groups are like
            the data, it equals the value by chance.
        segments_cv_by_chance: s / (m · sqrt(segments)), for groups filled one after the other with
            shuffled segments (renewal theory).
        mean_length_sd: tokens, sqrt(sum(n_g · (m_g - m)²) / N). 0 if every group has the mean
            length of the data.
        mean_length_sd_by_chance: tokens, s · sqrt((groups - 1) / N).
        alikeness: (mean_length_sd / mean_length_sd_by_chance)². 1: as by chance; 5: as if each
            segment occurred five times; 0: all groups have the same mean length. If many segments
            fill most of a pack alone, no full pack can be like the data, and shuffled segments
            packed one after the other have 1.4 to 3.
        loss_share: loss tokens ÷ all tokens; None if not measured, like the next two.
        loss_share_sd: sqrt(sum(L_g · (share_g - loss_share)²) / sum(L_g)).
        loss_share_sd_by_chance: the same for segments dealt at random.
        source_distance: mean over groups of half the sum over sources of |share of the group's
            tokens - share of all tokens|, the total variation distance. 0: the mixture of the data;
            1: nothing in common. None if not measured, like the following fields except the last.
        source_distance_max: distance of the group farthest from the data.
        source_distance_by_chance: mean distance for segments dealt at random.
        sources: mean over groups of 1 / sum(share²), the effective number of sources in a group by
            tokens (Simpson).
        sources_by_chance: the same for segments dealt at random.
        order_correlation: rank correlation (Spearman) of the groups' places with their mean
            lengths, -1 to 1. If the order is independent of length: 0 ± 1 / sqrt(groups).
    """

    groups: int
    segments: float
    segments_cv: float
    segments_cv_by_chance: float
    mean_length_sd: float
    mean_length_sd_by_chance: float
    alikeness: float
    order_correlation: float
    loss_share: float | None = None
    loss_share_sd: float | None = None
    loss_share_sd_by_chance: float | None = None
    source_distance: float | None = None
    source_distance_max: float | None = None
    source_distance_by_chance: float | None = None
    sources: float | None = None
    sources_by_chance: float | None = None

    def describe(self, name: str) -> list[str]:
        """Write the figures in words; ``name`` is ``pack`` or ``step``."""
        lines = [
            f"segments in a {name}: {self.segments:.1f}, give or take {100 * self.segments_cv:.0f} "
            f"% ({100 * self.segments_cv_by_chance:.0f} % by chance)",
            f"mean length of a {name} is off by {self.mean_length_sd:,.0f} tokens "
            f"({self.mean_length_sd_by_chance:,.0f} by chance); alikeness {self.alikeness:.2f} (1 "
            "by chance)",
        ]
        if self.loss_share is not None:
            lines.append(
                f"loss tokens in a {name}: {100 * self.loss_share:.1f} %, give or take "
                f"{100 * (self.loss_share_sd or 0):.1f} "
                f"({100 * (self.loss_share_sd_by_chance or 0):.1f} by chance)"
            )
        if self.source_distance is not None:
            lines.append(
                f"sources of a {name} are {100 * self.source_distance:.1f} % off the data's, at "
                f"most {100 * (self.source_distance_max or 0):.1f} % "
                f"({100 * (self.source_distance_by_chance or 0):.1f} % by chance); "
                f"{self.sources or 0:.2f} of them, effectively ({self.sources_by_chance or 0:.2f} "
                "by chance)"
            )
        lines.append(
            f"correlation of the order of {name}s with length: {self.order_correlation:+.3f} (0 by "
            "chance)"
        )
        return lines


@dataclass(frozen=True)
class Variety:
    """Diversity of a plan.

    Attributes:
        packs: diversity of the packs of the plan.
        steps: diversity of the steps of a schedule; None without one. A step has the segments of
            all its ranks.
    """

    packs: Spread
    steps: Spread | None = None

    def describe(self) -> list[str]:
        """Describe the figures in words, one per line."""
        return self.packs.describe("pack") + (
            self.steps.describe("step") if self.steps is not None else []
        )


def measure_variety(
    offsets: Offsets,
    lengths: Lengths,
    *,
    sources: AnyIntArray | None,
    loss_tokens: AnyIntArray | None,
    steps: Int64Array | None,
) -> Variety:
    """Measure how similar packs and steps are to the data.

    ::

        8 · 4 4 · 2 2 2 2       means 8, 4, 2 of 24 / 7 = 3.4      alikeness 3: the maximum
        8 · 4 2 2 · 4 2 2       means 8, 2.7, 2.7                  alikeness 2.5

    Pure: no I/O; the same arguments give the same figures.

    Args:
        offsets: ``int64[num_packs + 1]``, like ``Plan.offsets``; no pack is empty.
        lengths: ``int32[num_segments]``, tokens of each segment, pack after pack, like
            ``Plan.lengths``.
        sources: ``int[num_segments]``, the source of each segment, from 0.
        loss_tokens: ``int[num_segments]``, targets of the loss in each segment.
        steps: ``int64[steps, dp_world_size, micro_batches, packs_per_micro_batch]``, from
            ``schedule_packs``.

    Raises:
        InvalidLengthsError: a column that does not match the segments.
        PlanMismatchError: a schedule of other packs.

    Cost: some passes over the segments, and a sort of the segments if sources or loss tokens are
        given.
    Source: alikeness is the between-group variance in an analysis of variance, relative to random
        groups.

    >>> packs = np.array([0, 1, 3, 7]), np.array([8, 4, 4, 2, 2, 2, 2], dtype=np.int32)
    >>> print(*measure_variety(*packs, sources=None, loss_tokens=None, steps=None).describe(), sep="\\n")
    segments in a pack: 2.3, give or take 53 % (42 % by chance)
    mean length of a pack is off by 2 tokens (1 by chance); alikeness 3.00 (1 by chance)
    correlation of the order of packs with length: -1.000 (0 by chance)
    """
    num_packs, num_segments = len(offsets) - 1, len(lengths)
    if num_packs < 1:
        raise InvalidLengthsError("no packs: nothing to measure")
    for name, column in (("sources", sources), ("loss_tokens", loss_tokens)):
        if column is not None and len(column) != num_segments:
            raise InvalidLengthsError(
                f"{name} has {len(column):,} entries for {num_segments:,} segments"
            )
        if column is not None and int(column.min()) < 0:
            raise InvalidLengthsError(
                f"{name} of segment {int(np.argmin(column))} is {int(column.min())}, below 0"
            )
    columns = _Columns.of(offsets, lengths, sources, loss_tokens)
    packs = _spread(columns, np.arange(num_packs), np.arange(num_packs + 1))
    if steps is None or not steps.size:
        return Variety(packs)
    flat = steps.reshape(len(steps), -1)
    if not -1 <= int(flat.min()) <= int(flat.max()) < num_packs:
        raise PlanMismatchError(
            f"the schedule names packs {int(flat.min()):,} … {int(flat.max()):,} and the plan has "
            f"{num_packs:,}"
        )
    packs_per_step = np.count_nonzero(flat >= 0, axis=1)
    bounds = offsets_of(packs_per_step[packs_per_step > 0])
    return Variety(packs, _spread(columns, flat[flat >= 0], bounds) if len(bounds) > 1 else None)


@dataclass(frozen=True)
class _Columns:
    """Segments in the order of their packs, their sums by pack, and a random order of the
    segments.
    """

    offsets: Offsets
    lengths: Lengths
    sources: AnyIntArray | None
    loss_tokens: AnyIntArray | None
    tokens: Int64Array
    squares: Float64Array
    random_order: Int64Array | None

    @classmethod
    def of(
        cls,
        offsets: Offsets,
        lengths: Lengths,
        sources: AnyIntArray | None,
        loss_tokens: AnyIntArray | None,
    ) -> _Columns:
        squares = np.empty(len(offsets) - 1, dtype=np.float64)
        for first, last in _chunks(offsets):
            values = lengths[offsets[first] : offsets[last]].astype(np.float64)
            squares[first:last] = np.add.reduceat(
                values * values, offsets[first:last] - offsets[first]
            )
        random_order = None
        if sources is not None or loss_tokens is not None:
            random_order = generator(seed=0, epoch=0, purpose="variety").permutation(len(lengths))
        return cls(
            offsets,
            lengths,
            sources,
            loss_tokens,
            _by_pack(lengths, offsets),
            squares,
            random_order,
        )


def _spread(columns: _Columns, packs: Int64Array, bounds: Int64Array) -> Spread:
    """Measure groups of packs: group ``g`` is ``packs[bounds[g]:bounds[g + 1]]``; no group is
    empty.
    """
    begins = bounds[:-1]
    segments = np.add.reduceat(np.diff(columns.offsets)[packs], begins)
    tokens = np.add.reduceat(columns.tokens[packs], begins)
    num_groups, num_segments, total = len(segments), int(segments.sum()), int(tokens.sum())
    mean, means = total / num_segments, tokens / segments
    # Sums of squares of lengths within all groups, and of group means between them.
    within_groups = max(0.0, float(columns.squares[packs].sum()) - mean * total)
    between = float((segments * (means - mean) ** 2).sum())
    variance = within_groups / max(1, num_segments - 1)
    between_by_chance = variance * (num_groups - 1) / num_segments
    figures: dict[str, float] = {}
    if columns.loss_tokens is not None:
        figures |= _loss_figures(columns, columns.loss_tokens, packs, begins, tokens)
    if columns.sources is not None:
        figures |= _source_figures(columns, columns.sources, packs, bounds)
    return Spread(
        groups=num_groups,
        segments=num_segments / num_groups,
        segments_cv=float(segments.std()) * num_groups / num_segments,
        segments_cv_by_chance=float(np.sqrt(variance * num_groups / num_segments)) / mean,
        mean_length_sd=float(np.sqrt(between / num_segments)),
        mean_length_sd_by_chance=float(np.sqrt(between_by_chance)),
        alikeness=between / num_segments / between_by_chance if between_by_chance > 0 else 1.0,
        order_correlation=_rank_correlation(means),
        **figures,
    )


def _loss_figures(
    columns: _Columns,
    loss_tokens: AnyIntArray,
    packs: Int64Array,
    begins: Int64Array,
    tokens: Int64Array,
) -> dict[str, float]:
    """Measure shares of loss tokens, in these packs and in random packs of the same sizes."""
    loss = np.add.reduceat(_by_pack(loss_tokens, columns.offsets)[packs], begins)
    share = float(loss.sum() / tokens.sum())

    def deviation(loss: Int64Array, tokens: Int64Array) -> float:
        return float(np.sqrt((tokens * (loss / tokens - share) ** 2).sum() / tokens.sum()))

    order = columns.random_order
    random_loss = np.add.reduceat(_by_pack(loss_tokens[order], columns.offsets)[packs], begins)
    random_tokens = np.add.reduceat(
        _by_pack(columns.lengths[order], columns.offsets)[packs], begins
    )
    return {
        "loss_share": share,
        "loss_share_sd": deviation(loss, tokens),
        "loss_share_sd_by_chance": deviation(random_loss, random_tokens),
    }


def _source_figures(
    columns: _Columns, sources: AnyIntArray, packs: Int64Array, bounds: Int64Array
) -> dict[str, float]:
    """Measure shares of sources, in these packs and in random packs of the same sizes."""
    mean, maximum, number = _source_shares(columns, columns.lengths, sources, packs, bounds)
    order = columns.random_order
    assert order is not None
    mean_by_chance, _, number_by_chance = _source_shares(
        columns, columns.lengths[order], sources[order], packs, bounds
    )
    return {
        "source_distance": mean,
        "source_distance_max": maximum,
        "source_distance_by_chance": mean_by_chance,
        "sources": number,
        "sources_by_chance": number_by_chance,
    }


def _source_shares(
    columns: _Columns, lengths: Lengths, sources: AnyIntArray, packs: Int64Array, bounds: Int64Array
) -> tuple[float, float, float]:
    """Return the mean and the largest distance from the data, and the mean effective number of
    sources.
    """
    num_sources = int(sources.max()) + 1
    sizes = np.diff(columns.offsets)
    # Tokens of each source in all groups; a schedule may omit some packs and repeat others.
    repeats = np.bincount(packs, minlength=len(sizes))
    totals = np.zeros(num_sources)
    for first, last in _chunks(columns.offsets):
        segments = slice(columns.offsets[first], columns.offsets[last])
        weights = lengths[segments] * np.repeat(repeats[first:last], sizes[first:last])
        totals += np.bincount(sources[segments], weights=weights, minlength=num_sources)
    group_ends = offsets_of(sizes[packs])[bounds]
    distance = max_distance = effective_number = 0.0
    # A chunk of groups at a time: a table of tokens by group and source.
    for first, last in _chunks(group_ends, max_groups=max(1, _CHUNK // num_sources)):
        group_packs = packs[bounds[first] : bounds[last]]
        rows = ranges(columns.offsets[group_packs], sizes[group_packs])
        groups = np.repeat(np.arange(last - first), np.diff(group_ends[first : last + 1]))
        keys = groups * num_sources + sources[rows]
        table = np.bincount(keys, weights=lengths[rows], minlength=(last - first) * num_sources)
        table = table.reshape(-1, num_sources)
        shares = table / table.sum(axis=1, keepdims=True)
        distances = np.abs(shares - totals / totals.sum()).sum(axis=1) / 2
        distance += float(distances.sum())
        max_distance = max(max_distance, float(distances.max()))
        effective_number += float((1 / (shares * shares).sum(axis=1)).sum())
    num_groups = len(bounds) - 1
    return distance / num_groups, max_distance, effective_number / num_groups


def _chunks(offsets: Offsets, max_groups: int = _CHUNK) -> Iterator[tuple[int, int]]:
    """Yield ranges of groups, first and last + 1, with at most ``_CHUNK`` members in total, or a
    single group.
    """
    first, num_groups = 0, len(offsets) - 1
    while first < num_groups:
        last = int(np.searchsorted(offsets, offsets[first] + _CHUNK, side="right")) - 1
        last = min(max(last, first + 1), first + max_groups, num_groups)
        yield first, last
        first = last


def _by_pack(column: AnyIntArray, offsets: Offsets) -> Int64Array:
    sums: Int64Array = np.add.reduceat(column, offsets[:-1], dtype=np.int64)
    return sums


def _rank_correlation(values: Float64Array) -> float:
    """Return Spearman's rank correlation between values and their places; 0 if all values are
    equal.
    """
    _, rank, counts = np.unique(values, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(counts) - (counts - 1) / 2)[
        rank
    ]  # equal values share the mean of their ranks
    ranks -= ranks.mean()
    places = np.arange(len(values)) - (len(values) - 1) / 2
    scale = float(np.sqrt((ranks * ranks).sum() * (places * places).sum()))
    return float((ranks * places).sum()) / scale if scale > 0 else 0.0
