"""The account of a plan: every sample and every token."""

from dataclasses import asdict, dataclass

import numpy as np

from brimful.base.typing import AnyIntArray, BoolArray, Int64Array, Lengths
from brimful.base.wording import setting
from brimful.errors import NoTargetError
from brimful.lengths.table import LengthTable
from brimful.lengths.targets import Targets
from brimful.plan.plan_settings import PlanSettings
from brimful.plan.policies.overflow import NO_SAMPLES, Overflow, Segments

MUCH_LOST = 0.05
"""Share of lost tokens from which a warning is given: it then shows in the mixture, and is rarely
wanted.
"""


def drop_reason(name: str) -> str:
    """Return words for a name in ``PlanOutcome.dropped_by``.

    >>> drop_reason("tokens"), drop_reason("patches")
    ('longer than a pack', 'for patches')
    """
    reasons = {
        "tokens": "longer than a pack",
        "no_target": "without a target of the loss",
        "group_mate_rejected": "in a group with a rejected sample",
    }
    return reasons.get(name, f"for {name}")


def assert_all(noun: str, count: int, *counts: int) -> None:
    """Assert that the parts of an account are all that came in.

    >>> assert_all("samples", 3, 1, 2)
    """
    assert sum(counts) == count, f"{sum(counts)} {noun} accounted for, {count} came in"


@dataclass(frozen=True)
class Ledger:
    """The account of one plan. In samples: in = packed + dropped. In tokens: in = packed + dropped
    + truncated.

    If samples share their beginnings, ``tokens_packed`` counts a shared token once, and
    ``tokens_shared`` the further times that samples have it: in = packed + shared + dropped +
    truncated. Targets are counted for each sample that has them.

    Rejected samples (malformed rows) have no length and are counted separately. Targets of the loss
    are counted if they were measured: in = packed + dropped + cut, where ``cut`` counts the targets
    that truncation removes and the first tokens of segments in the middle of a sample, which are
    not targets any more.

    A mixture draws some samples several times and others not at all. Then ``samples_packed`` counts
    distinct samples, ``tokens_packed`` counts all tokens in the packs, and in = packed - repeated +
    dropped + truncated + not drawn.

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
    tokens_shared: int = 0
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
        assert_all(
            "samples",
            self.samples_in,
            self.samples_packed,
            self.samples_dropped,
            self.samples_rejected,
            self.samples_not_drawn,
        )
        assert_all(
            "tokens",
            self.tokens_in,
            self.tokens_packed - self.tokens_repeated,
            self.tokens_dropped,
            self.tokens_truncated,
            self.tokens_not_drawn,
            self.tokens_shared,
        )
        if self.targets_in is not None:
            assert_all(
                "targets",
                self.targets_in,
                *filter(None, (self.targets_packed, self.targets_dropped, self.targets_cut)),
                self.targets_not_drawn - self.targets_repeated,
            )

    @property
    def lost_ratio(self) -> float:
        """Share of the input tokens that are not in any pack: dropped or truncated."""
        return (self.tokens_dropped + self.tokens_truncated) / max(1, self.tokens_in)

    @property
    def targets_lost_ratio(self) -> float:
        """Share of the input targets that are not in any pack; 0 if they were not measured."""
        return ((self.targets_dropped or 0) + (self.targets_cut or 0)) / (self.targets_in or 1)

    def as_dict(self) -> dict[str, int]:
        """Return the account for JSON; targets only if they were measured, draws only for
        mixtures, shared tokens only for trees.
        """
        if_any = ("_repeated", "_not_drawn", "_shared")
        return {
            name: value
            for name, value in asdict(self).items()
            if value is not None and (value or not name.endswith(if_any))
        }


def targets_of(segments: Segments, targets: Targets, tokens: Lengths) -> Int64Array:
    """Count the targets in each segment of samples with these tokens: ``int64[num_segments]``."""
    ids, lengths = segments.ids(), segments.lengths
    counts = targets.counts[ids].astype(np.int64)
    cut = np.flatnonzero(lengths != tokens[ids])
    starts = np.zeros(len(cut), dtype=np.int64) if segments.starts is None else segments.starts[cut]
    counts[cut] = targets.within(ids[cut], starts, lengths[cut])
    return counts


def ledger_of(
    table: LengthTable,
    segments: Segments,
    settings: PlanSettings,
    *,
    times: Int64Array | None = None,
) -> Ledger:
    """Account for every sample, token and target of a plan.

    Args:
        table: all input samples.
        segments: the segments that could be packed, and the samples that were left out.
        settings: the policies that left them out.
        times: ``int64[num_segments]``, how often a mixture packs each segment, equal for all
            segments of a sample; None if each is packed once.

    Raises:
        NoTargetError: the input has targets, and no segment has one.
    """
    tokens, targets = table.tokens, table.targets
    lengths, dropped_ids = segments.lengths, segments.dropped_ids
    if (
        lengths is tokens and times is None
    ):  # nothing dropped, cut or rejected: no need to look at every sample again
        tokens_packed = int(lengths.sum(dtype=np.int64))
        account = {}
        if targets is not None:
            account = {"samples_without_target": int(np.count_nonzero(targets.counts == 0))}
            account |= {"targets_in": targets.total, "targets_packed": targets.total}
            account |= {"targets_dropped": 0, "targets_cut": 0}
        return Ledger(
            samples_in=len(tokens),
            tokens_in=tokens_packed,
            samples_packed=len(tokens),
            tokens_packed=tokens_packed,
            segments=len(tokens),
            **account,
        )

    ids = segments.ids()
    # Without repeats all segments are packed, and no array is made for the account.
    is_packed = slice(None) if times is None else times > 0
    packed_ids = ids[is_packed]
    left_ids = NO_SAMPLES if times is None else np.unique(ids[times == 0])

    def repeats_of(values: AnyIntArray | BoolArray) -> int:
        return 0 if times is None else int((np.maximum(times - 1, 0) * values).sum())

    def fates(
        noun: str, in_segments: AnyIntArray, in_samples: AnyIntArray, total: int, cut: str
    ) -> dict[str, int]:
        """Account for tokens or targets, of which ``cut`` names the ones that truncation
        removes.
        """
        packed = int((in_segments if times is None else times * in_segments).sum(dtype=np.int64))
        repeated = repeats_of(in_segments)
        dropped, left = (
            int(in_samples[rows].sum(dtype=np.int64)) for rows in (dropped_ids, left_ids)
        )
        counts = {
            "in": total,
            "packed": packed,
            "repeated": repeated,
            "dropped": dropped,
            "not_drawn": left,
        }
        counts[cut] = total - dropped - left - (packed - repeated)
        return {f"{noun}_{fate}": count for fate, count in counts.items()}

    num_rejected = int(np.count_nonzero(tokens < 0))
    num_packed = len(tokens) - num_rejected - len(dropped_ids) - len(left_ids)
    num_truncated = 0
    if settings.overflow_policy in (Overflow.TRUNCATE, Overflow.TRUNCATE_LEFT):
        if table.group_size > 1:  # a preference pair is cut by the lengths of both samples
            num_truncated = int(np.count_nonzero(lengths < tokens[ids]))
        else:
            is_longer = tokens > settings.longest_segment
            is_longer[dropped_ids], is_longer[left_ids] = False, False
            num_truncated = int(np.count_nonzero(is_longer))
    account = fates("tokens", lengths, tokens, table.total_tokens, "truncated")
    if targets is not None:
        in_segment = targets_of(segments, targets, tokens)
        account |= fates("targets", in_segment, targets.counts, targets.total, "cut")
        # A sample of several segments has a target if any of them has.
        has_target = np.zeros(len(tokens), dtype=np.bool_)
        has_target[packed_ids[in_segment[is_packed] > 0]] = True
        account["samples_without_target"] = num_packed - int(np.count_nonzero(has_target))
        if len(ids) and not in_segment.any():
            raise NoTargetError(
                f"of {targets.total:,} targets of the loss none is in a pack: "
                f"{account['targets_dropped']:,} were dropped and {account['targets_cut']:,} cut "
                f"off; a larger {setting('capacity')} keeps some",
                sample_id=int(segments.sample_ids[0]) if segments.sample_ids is not None else 0,
            )
    return Ledger(
        samples_in=len(tokens),
        samples_packed=num_packed,
        samples_dropped=len(dropped_ids),
        samples_truncated=num_truncated,
        samples_split=int(np.count_nonzero(np.bincount(packed_ids) > 1))
        if len(packed_ids) != num_packed
        else 0,
        segments=len(ids) if times is None else int(times.sum()),
        samples_rejected=num_rejected,
        draws_repeated=repeats_of(np.diff(ids, prepend=-1) != 0),
        samples_not_drawn=len(left_ids),
        **account,
    )
