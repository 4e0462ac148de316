"""The account of a plan: every sample and every token."""

from dataclasses import asdict, dataclass, replace

import numpy as np

from brimful.errors import NoTargetError
from brimful.lengths.table import LengthTable
from brimful.messages import setting
from brimful.plan.policies.no_target import NoTarget
from brimful.plan.policies.overflow import Overflow, Segments
from brimful.plan.settings import PlanSettings
from brimful.typing import Int64Array

MUCH_LOST = 0.05
"""Share of lost tokens from which a warning is given: it then shows in the mixture, and is rarely wanted."""


def drop_reason(name: str) -> str:
    """Return words for a name in ``PlanOutcome.dropped_by``.

    >>> drop_reason("tokens"), drop_reason("patches")
    ('longer than a pack', 'for patches')
    """
    return _DROP_REASONS.get(name, f"for {name}")


_DROP_REASONS = {
    "tokens": "longer than a pack",
    "no_target": "without a target of the loss",
    "group_mate_rejected": "in a group with a rejected sample",
}


@dataclass(frozen=True)
class Ledger:
    """The account of one plan. In samples: in = packed + dropped. In tokens: in = packed + dropped + truncated.

    Rejected samples (malformed rows) have no length and are counted separately. Targets of the loss are counted if they
    were measured: in = packed + dropped + cut, where ``cut`` counts the targets that truncation removes and the first
    tokens of segments in the middle of a sample, which are not targets any more.

    A mixture draws some samples several times and others not at all. Then ``samples_packed`` counts distinct samples,
    ``tokens_packed`` counts all tokens in the packs, and in = packed - repeated + dropped + truncated + not drawn.

    >>> Ledger(samples_in=2, tokens_in=9, samples_packed=1, tokens_packed=4, samples_dropped=1, tokens_dropped=5)
    ... # doctest: +ELLIPSIS
    Ledger(samples_in=2, ...)
    """

    samples_in: int = 0
    tokens_in: int = 0
    samples_packed: int = 0
    tokens_packed: int = 0
    samples_dropped: int = 0
    tokens_dropped: int = 0
    samples_truncated: int = 0
    tokens_truncated: int = 0
    samples_split: int = 0
    segments: int = 0
    samples_rejected: int = 0
    samples_without_target: int = 0
    targets_in: int | None = None
    targets_packed: int | None = None
    targets_dropped: int | None = None
    targets_cut: int | None = None
    draws_repeated: int = 0
    tokens_repeated: int = 0
    targets_repeated: int = 0
    samples_not_drawn: int = 0
    tokens_not_drawn: int = 0
    targets_not_drawn: int = 0

    def __post_init__(self) -> None:
        samples = self.samples_packed + self.samples_dropped + self.samples_rejected + self.samples_not_drawn
        tokens = self.tokens_packed - self.tokens_repeated + self.tokens_dropped + self.tokens_truncated
        tokens += self.tokens_not_drawn
        assert samples == self.samples_in, f"{samples} samples accounted for, {self.samples_in} came in"
        assert tokens == self.tokens_in, f"{tokens} tokens accounted for, {self.tokens_in} came in"
        if self.targets_in is not None:
            targets = (self.targets_packed or 0) + (self.targets_dropped or 0) + (self.targets_cut or 0)
            targets += self.targets_not_drawn - self.targets_repeated
            assert targets == self.targets_in, f"{targets} targets accounted for, {self.targets_in} came in"

    @property
    def lost_ratio(self) -> float:
        """Share of the input tokens that are not in any pack: dropped or truncated."""
        return (self.tokens_dropped + self.tokens_truncated) / max(1, self.tokens_in)

    @property
    def targets_lost_ratio(self) -> float:
        """Share of the input targets that are not in any pack; 0 if they were not measured."""
        return ((self.targets_dropped or 0) + (self.targets_cut or 0)) / max(1, self.targets_in or 0)

    def as_dict(self) -> dict[str, int]:
        """Return the account for JSON; targets only if they were measured, draws only for mixtures."""
        return {
            name: value
            for name, value in asdict(self).items()
            if value is not None and (value or name not in _OF_MIXTURES)
        }


_OF_MIXTURES = frozenset(
    f"{noun}_{fate}"
    for noun, fate in (
        *((noun, "not_drawn") for noun in ("samples", "tokens", "targets")),
        *((noun, "repeated") for noun in ("draws", "tokens", "targets")),
    )
)
"""Entries that only plans of mixtures have; the records of other plans stay as they were."""


def ledger_of(
    table: LengthTable, segments: Segments, settings: PlanSettings, *, tokens_packed: int | None = None
) -> Ledger:
    """Account for every sample, token and target of a plan.

    Args:
        table: all input samples.
        segments: the packed segments, and the samples that were left out.
        settings: the policies that left them out.
        tokens_packed: sum of the segments' lengths; computed if None.

    Raises:
        NoTargetError: the input has targets, and none is in a pack.
    """
    tokens = table.tokens
    if tokens_packed is None:
        tokens_packed = int(segments.lengths.sum(dtype=np.int64))
    targets = {} if table.targets is None else _account_of_targets(table, segments)
    if segments.lengths is tokens:  # nothing dropped, cut or rejected: no need to look at every sample again
        return Ledger(
            samples_in=len(tokens),
            tokens_in=tokens_packed,
            samples_packed=len(tokens),
            tokens_packed=tokens_packed,
            segments=len(tokens),
            **targets,
        )
    dropped_lengths = tokens[segments.dropped_ids]
    tokens_dropped = int(dropped_lengths.sum(dtype=np.int64))
    num_rejected = int(np.count_nonzero(tokens < 0))
    num_packed = len(tokens) - num_rejected - len(segments.dropped_ids)
    num_split = num_truncated = 0
    if len(segments.lengths) != num_packed:
        num_split = int(np.count_nonzero(np.bincount(segments.ids()) > 1))
    if settings.overflow_policy in (Overflow.TRUNCATE, Overflow.TRUNCATE_LEFT):
        num_truncated = int(np.count_nonzero(tokens > settings.longest_segment))
        if table.group_size > 1:  # a preference pair is cut by the lengths of both samples
            num_truncated = int(np.count_nonzero(segments.lengths < tokens[segments.ids()]))
        elif settings.no_target_policy is NoTarget.DROP:  # some are left out, as truncation removed their targets
            num_truncated -= int(np.count_nonzero(dropped_lengths > settings.longest_segment))
    ledger = Ledger(
        samples_in=len(tokens),
        tokens_in=table.total_tokens,
        samples_packed=num_packed,
        tokens_packed=tokens_packed,
        samples_dropped=len(segments.dropped_ids),
        tokens_dropped=tokens_dropped,
        samples_truncated=num_truncated,
        tokens_truncated=table.total_tokens - tokens_packed - tokens_dropped,
        samples_split=num_split,
        segments=len(segments.lengths),
        samples_rejected=num_rejected,
        **targets,
    )
    if ledger.targets_packed == 0 and ledger.samples_packed:
        raise NoTargetError(
            f"of {ledger.targets_in:,} targets of the loss none is in a pack: {ledger.targets_dropped:,} were dropped and "
            f"{ledger.targets_cut:,} cut off; a larger {setting('capacity')} keeps some",
            sample_id=int(segments.sample_ids[0]) if segments.sample_ids is not None else 0,
        )
    return ledger


def ledger_of_draws(table: LengthTable, pool: Segments, times: Int64Array, settings: PlanSettings) -> Ledger:
    """Account for a plan that contains some samples several times and others not at all.

    Args:
        table: all input samples.
        pool: segments of all samples that could be packed.
        times: ``int64[num_segments]``, how often each segment is packed; equal for all segments of a sample.
        settings: the policies.
    """
    base = ledger_of(table, pool, settings)
    ids = pool.ids()
    lengths = pool.lengths.astype(np.int64)
    repeats = np.maximum(times - 1, 0)
    is_left = times == 0
    left_ids = np.unique(ids[is_left])
    packed_ids = ids[~is_left]
    begins_sample = np.r_[True, packed_ids[1:] != packed_ids[:-1]] if len(packed_ids) else np.zeros(0, dtype=np.bool_)
    num_packed = int(np.count_nonzero(begins_sample))
    num_split = 0
    if base.samples_split:
        num_split = int(np.count_nonzero(np.bincount(packed_ids) > 1))
    left_tokens = table.tokens[left_ids]
    tokens_left = int(left_tokens.sum(dtype=np.int64))
    tokens_packed, tokens_repeated = int((times * lengths).sum()), int((repeats * lengths).sum())
    num_truncated = base.samples_truncated
    if num_truncated:
        num_truncated -= int(np.count_nonzero(left_tokens > settings.longest_segment))
    targets: dict[str, int] = {}
    if table.targets is not None:
        starts = np.zeros(len(ids), dtype=np.int64) if pool.starts is None else pool.starts
        in_segment = table.targets.within(ids, starts, pool.lengths).astype(np.int64)
        targets_left = int(table.targets.counts[left_ids].sum(dtype=np.int64))
        targets_packed, targets_repeated = int((times * in_segment).sum()), int((repeats * in_segment).sum())
        has_target = np.zeros(len(table), dtype=np.bool_)
        has_target[ids[(in_segment > 0) & ~is_left]] = True
        targets = {
            "targets_packed": targets_packed,
            "targets_repeated": targets_repeated,
            "targets_not_drawn": targets_left,
            "targets_cut": table.targets.total
            - (base.targets_dropped or 0)
            - targets_left
            - (targets_packed - targets_repeated),
            "samples_without_target": num_packed - int(np.count_nonzero(has_target)),
        }
    return replace(
        base,
        samples_packed=num_packed,
        tokens_packed=tokens_packed,
        samples_truncated=num_truncated,
        tokens_truncated=base.tokens_in - base.tokens_dropped - tokens_left - (tokens_packed - tokens_repeated),
        samples_split=num_split,
        segments=int(times.sum()),
        draws_repeated=int(repeats[np.r_[True, ids[1:] != ids[:-1]]].sum()) if len(ids) else 0,
        tokens_repeated=tokens_repeated,
        samples_not_drawn=len(left_ids),
        tokens_not_drawn=tokens_left,
        **targets,
    )


def _account_of_targets(table: LengthTable, segments: Segments) -> dict[str, int]:
    """Count targets that are packed, dropped and cut off, and packed samples without a target."""
    targets, tokens = table.targets, table.tokens
    assert targets is not None
    targets_dropped = int(targets.counts[segments.dropped_ids].sum(dtype=np.int64))
    if segments.lengths is tokens:
        targets_packed, num_targetless = targets.total, int(np.count_nonzero(targets.counts == 0))
    else:
        ids = segments.ids()
        in_segment = targets.counts[ids].astype(np.int64)
        cut = np.flatnonzero(segments.lengths != tokens[ids])
        starts = np.zeros(len(cut), dtype=np.int64) if segments.starts is None else segments.starts[cut]
        in_segment[cut] = targets.within(ids[cut], starts, segments.lengths[cut])
        targets_packed = int(in_segment.sum())
        # A sample of several segments has a target if any of them has.
        is_packed = np.zeros(len(tokens), dtype=np.bool_)
        is_packed[ids] = True
        has_target = np.zeros(len(tokens), dtype=np.bool_)
        has_target[ids[in_segment > 0]] = True
        num_targetless = int(np.count_nonzero(is_packed & ~has_target))
    return {
        "samples_without_target": num_targetless,
        "targets_in": targets.total,
        "targets_packed": targets_packed,
        "targets_dropped": targets_dropped,
        "targets_cut": targets.total - targets_packed - targets_dropped,
    }
