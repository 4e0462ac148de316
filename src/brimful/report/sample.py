"""What became of one sample: where it came from, and the packs that hold it, or why none does."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from brimful.errors import BrimfulError, SettingsError
from brimful.materialize.dropped import why_dropped
from brimful.measure import LengthTable
from brimful.messages import setting
from brimful.plan import Plan
from brimful.sources import open_source

__all__ = ["Place", "SampleFate", "find_sample"]


@dataclass(frozen=True, slots=True)
class Place:
    """A segment of the sample in a pack.

    Attributes:
        pack: number of the pack.
        first: token of the pack that the segment begins at.
        tokens: in the segment.
        start: token of the sample that it begins with; 0 unless the sample was cut.
    """

    pack: int
    first: int
    tokens: int
    start: int


@dataclass(frozen=True)
class SampleFate:
    """One sample, from its row to its packs.

    Attributes:
        sample_id: its index in the source.
        where: file and line; empty where no table of lengths says what the source was.
        tokens: its length; None where no table is at hand, and for a rejected row.
        targets: of the loss; None where they were not measured.
        status: ``packed``, ``truncated``, ``split``, ``dropped``, ``rejected``, or ``measured`` where there is no plan.
        reason: why it is in no pack, or not all of it.
        places: in the order of its tokens.
    """

    sample_id: int
    where: str
    tokens: int | None
    targets: int | None
    status: str
    reason: str
    places: tuple[Place, ...]

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"kind": "sample", **asdict(self), "places": [asdict(place) for place in self.places]}

    def describe(self) -> list[str]:
        """A few lines for people."""
        lines = [f"sample         {self.sample_id:,}" + (f" at {self.where}" if self.where else "")]
        if self.tokens is not None:
            targets = "" if self.targets is None else f", {self.targets:,} of them targets of the loss"
            lines.append(f"tokens         {self.tokens:,}{targets}")
        for place in self.places:
            part = ""
            if self.status in ("truncated", "split"):
                part = f": its tokens {place.start:,} … {place.start + place.tokens - 1:,}"
            lines.append(
                f"packed         pack {place.pack:,}, tokens {place.first:,} … {place.first + place.tokens - 1:,}{part}"
            )
        if self.reason:
            lines.append(f"{self.status:<15}{self.reason}")
        return lines


def find_sample(sample_id: int, *, plan: Plan | None, table: LengthTable | None) -> SampleFate:
    """What became of a sample, by the plan and the lengths that it was packed from.

    Args:
        sample_id: its index in the source.
        plan: the plan; None where lengths were measured and nothing was planned yet.
        table: its lengths; None if they are not at hand, and then neither is file and line.

    Raises:
        SettingsError: there is no such sample, or nothing to find it in.

    >>> from brimful.plan import plan_packs
    >>> table = LengthTable.from_lengths([3, 9, 4])
    >>> plan = plan_packs(table, capacity=8, overflow="truncate", seed=None)
    >>> find_sample(1, plan=plan, table=table).describe()[-1]
    'truncated      1 of its 9 tokens are in no pack'
    """
    if plan is None and table is None:
        raise SettingsError(f"{setting('sample', sample_id)}: there is neither a plan nor a length table to find it in")
    count = len(table) if table is not None else plan.ledger.samples_in if plan is not None else 0
    if not 0 <= sample_id < count:
        raise SettingsError(f"{setting('sample', sample_id)}: there are samples 0 … {count - 1:,}")
    tokens = targets = None
    where, rejected = "", ""
    if table is not None:
        tokens = int(table.tokens[sample_id])
        targets = None if table.targets is None else int(table.targets.counts[sample_id])
        for rejected_id, place, reason in table.rejects:
            if int(rejected_id) == sample_id:
                where, rejected = place, reason
        where = where or _where(table, sample_id)
        if tokens < 0:
            return SampleFate(sample_id, where, None, None, "rejected", rejected or "the row could not be read", ())
    if plan is None:
        return SampleFate(sample_id, where, tokens, targets, "measured", "", ())
    places = _places(plan, sample_id)
    status, reason = _status(plan, table, sample_id, places, tokens)
    return SampleFate(sample_id, where, tokens, targets, status, reason, places)


def _status(
    plan: Plan, table: LengthTable | None, sample_id: int, places: tuple[Place, ...], tokens: int | None
) -> tuple[str, str]:
    held = sum(place.tokens for place in places)
    if not places:
        if len(plan.dropped_ids) and bool(np.isin(sample_id, plan.dropped_ids)):
            known = table is not None and len(table) == plan.ledger.samples_in
            return "dropped", why_dropped(plan, table, sample_id) if known and table is not None else _of_settings(plan)
        return "rejected", "the row could not be read"
    if tokens is not None and held < tokens:
        return "truncated", f"{tokens - held:,} of its {tokens:,} tokens are in no pack"
    return ("split" if len(places) > 1 else "packed"), ""


def _of_settings(plan: Plan) -> str:
    """Why the plan leaves samples out, where nobody knows the lengths any more."""
    by = ", ".join(f"{count:,} for {name}" for name, count in plan.settings.get("dropped_by", {}).items())
    return f"by the plan ({by or 'longer than a pack'}); lengths.arrow is not beside it"


def _places(plan: Plan, sample_id: int) -> tuple[Place, ...]:
    rows = np.flatnonzero(plan.sample_ids == sample_id)
    packs = np.searchsorted(plan.offsets, rows, side="right") - 1
    places = []
    for row, pack in zip(rows.tolist(), packs.tolist(), strict=True):
        first = int(plan.lengths[int(plan.offsets[pack]) : row].sum())
        places.append(Place(pack, first, int(plan.lengths[row]), int(plan.starts[row])))
    return tuple(sorted(places, key=lambda place: place.start))


def _where(table: LengthTable, sample_id: int) -> str:
    """File and line, as the file says that is there now; the row of the file that was measured if it is another now."""
    parts = [(str(title), int(rows)) for title, rows in table.provenance.get("parts", ())]
    for (title, rows), end in zip(parts, accumulate(rows for _, rows in parts), strict=True):
        if sample_id < end:
            row = sample_id - (end - rows)
            try:
                source = open_source(title)
            except (BrimfulError, OSError):
                return f"row {row:,} of {title}"
            return source.where(row) if len(source) == rows else f"row {row:,} of {title} as it was then"
    return ""
