"""The fate of one sample: its origin, and the packs that hold it, or why no pack does."""

from dataclasses import dataclass

import numpy as np

from brimful.base.wording import counted, setting
from brimful.errors import BrimfulError, SettingsError
from brimful.measure import LengthTable
from brimful.plan import Plan
from brimful.report.analysis.shown_packs import samples_through
from brimful.sources import open_source
from brimful.store.summary import why_dropped
from brimful.trees.account import tree_of_pack


@dataclass(frozen=True, slots=True)
class Placement:
    """One segment of the sample in a pack.

    Attributes:
        pack: number of the pack.
        first: token of the pack at which the segment begins.
        tokens: in the segment.
        start: token of the sample at which the segment begins; 0 unless the sample was cut, or
            shares its beginning.
        sharing: other samples that share the segment; None in a plan without trees.
    """

    pack: int
    first: int
    tokens: int
    start: int
    sharing: int | None = None


@dataclass(frozen=True)
class SampleFate:
    """One sample, from its row to its packs.

    Attributes:
        sample_id: its index in the source.
        where: file and line; empty without a length table that names the source.
        tokens: its length; None without a table, and for a rejected row.
        targets: of the loss; None if they were not measured.
        status: ``packed``, ``truncated``, ``split``, ``dropped``, ``rejected``, or ``measured``
            without a plan.
        reason: of a loss; empty if the whole sample is in packs.
        places: segments in the order of their tokens.
    """

    sample_id: int
    where: str
    tokens: int | None
    targets: int | None
    status: str
    reason: str
    places: tuple[Placement, ...]

    def describe(self) -> list[str]:
        """Describe the fate in a few lines."""
        lines = [f"sample         {self.sample_id:,}" + (f" at {self.where}" if self.where else "")]
        if self.tokens is not None:
            targets = (
                "" if self.targets is None else f", {self.targets:,} of them targets of the loss"
            )
            lines.append(f"tokens         {self.tokens:,}{targets}")
        for placement in self.places:
            span = ""
            if self.status in ("truncated", "split"):
                span = (
                    f": its tokens {placement.start:,} … {placement.start + placement.tokens - 1:,}"
                )
            if placement.sharing:
                span = f": shared with {counted(placement.sharing, 'other sample')}"
            tokens = f"tokens {placement.first:,} … {placement.first + placement.tokens - 1:,}"
            lines.append(
                f"packed         pack {placement.pack:,}, "
                f"{tokens if placement.tokens else 'ends where its trunk does'}{span}"
            )
        if self.reason:
            lines.append(f"{self.status:<15}{self.reason}")
        return lines


def find_sample(sample_id: int, plan: Plan | None, table: LengthTable | None) -> SampleFate:
    """Find a sample in a plan and in the lengths that were planned.

    Args:
        sample_id: its index in the source.
        plan: the plan; None if lengths were measured and nothing was planned yet.
        table: lengths of the samples; None if they are missing, and with them file and line.

    Raises:
        SettingsError: no such sample, or neither a plan nor a table.

    >>> from brimful.plan import plan_packs
    >>> table = LengthTable.from_lengths([3, 9, 4])
    >>> plan = plan_packs(table, capacity=8, overflow="truncate", seed=None)
    >>> find_sample(1, plan=plan, table=table).describe()[-1]
    'truncated      1 of its 9 tokens are in no pack'
    """
    if plan is None and table is None:
        raise SettingsError(
            f"{setting('sample', sample_id)}: no plan and no length table to find it in"
        )
    count = len(table) if table is not None else plan.ledger.samples_in if plan is not None else 0
    if not 0 <= sample_id < count:
        raise SettingsError(f"{setting('sample', sample_id)}: the samples are 0 … {count - 1:,}")
    origin, tokens, targets = "", None, None
    if table is not None:
        rejects = {
            int(rejected_id): (location, reason) for rejected_id, location, reason in table.rejects
        }
        origin, reason = rejects.get(sample_id, ("", ""))
        origin = origin or _origin(table, sample_id)
        # A length of −1 marks a row that could not be read.
        tokens = int(table.tokens[sample_id])
        if tokens < 0:
            return SampleFate(sample_id, origin, None, None, "rejected", reason or _UNREADABLE, ())
        targets = None if table.targets is None else int(table.targets.counts[sample_id])
    if plan is None:
        return SampleFate(sample_id, origin, tokens, targets, "measured", "", ())
    placements = _placements(plan, sample_id)
    packed_tokens = sum(location.tokens for location in placements)
    is_split = plan.sharing is None and len(placements) > 1
    status, reason = "split" if is_split else "packed", ""
    if not placements and not np.isin(sample_id, plan.dropped_ids):
        status, reason = "rejected", _UNREADABLE
    elif not placements:
        status, reason = "dropped", "by the plan; lengths.arrow is not next to the plan"
        if table is not None:
            reason = why_dropped(plan, table, sample_id)
    elif tokens is not None and packed_tokens < tokens:
        status = "truncated"
        reason = f"{tokens - packed_tokens:,} of its {tokens:,} tokens are in no pack"
    return SampleFate(sample_id, origin, tokens, targets, status, reason, tuple(placements))


def _placements(plan: Plan, sample_id: int) -> list[Placement]:
    """Return the segments that hold a sample, in the order of its tokens."""
    segments = np.flatnonzero(plan.sample_ids == sample_id)
    # Pack i holds the segments offsets[i] … offsets[i + 1] − 1.
    packs = np.searchsorted(plan.offsets, segments, side="right") - 1
    sharing: dict[int, int] = {}
    if plan.sharing is not None and len(packs):
        # A segment may have the number of the sample only because that ends further down.
        tree = tree_of_pack(plan, pack := int(packs[0]))
        first = int(plan.offsets[pack])
        (index,) = np.flatnonzero(plan.sample_ids[first + tree.ends] == sample_id)
        path = tree.paths().row(int(index))
        segments, packs = first + path, np.full(len(path), pack)
        others = samples_through(tree)[path] - 1
        sharing = dict(zip(segments.tolist(), others.tolist(), strict=True))
    placements = (
        Placement(
            pack,
            int(plan.lengths[int(plan.offsets[pack]) : segment].sum()),
            int(plan.lengths[segment]),
            int(plan.starts[segment]),
            sharing.get(segment),
        )
        for pack, segment in zip(packs.tolist(), segments.tolist(), strict=True)
    )
    return sorted(placements, key=lambda placement: placement.start)


_UNREADABLE = "the row could not be read"


def _origin(table: LengthTable, sample_id: int) -> str:
    """Return file and line of a sample by the present file, or its row number if that file has been
    replaced.
    """
    # Samples are numbered through all files of a source; row numbers start again in each.
    row = sample_id
    for title, count in table.provenance.get("parts", ()):
        if row < count:
            try:
                source = open_source(title)
                if table.per_turn and len(source) != count:
                    source = open_source(title, per_turn=True)
            except (BrimfulError, OSError):
                return f"row {row:,} of {title}"
            return (
                source.where(row)
                if len(source) == count
                else f"row {row:,} of {title} as it was when measured"
            )
        row -= count
    return ""
