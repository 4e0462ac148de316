"""What a job did: for people as some lines, for machines as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from brimful.measure.table import LengthTable
from brimful.messages import counted, in_python
from brimful.plan import Plan
from brimful.plan.ledger import MUCH_LOST, drop_reason

__all__ = ["PackSummary"]

_COLUMNS_SHOWN = 8


@dataclass(frozen=True)
class PackSummary:
    """What the job did.

    Attributes:
        source: what the data set is called.
        format: of its rows.
        unit: what one document is, for files of text; empty for others.
        directory: of the packs.
        capacity: most tokens of a pack.
        plan, table: of the job.
        shards: files of packs.
        first_rejected: where the first row that was skipped lies, and why; its settings marked (``brimful.messages``).
        seconds: of each stage that had something to do.
    """

    source: str
    format: str
    directory: str
    capacity: int
    plan: Plan
    table: LengthTable
    shards: int
    unit: str = ""
    first_rejected: str = ""
    seconds: dict[str, float] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """The summary that ``brimful pack`` prints."""
        ledger, plan = self.plan.ledger, self.plan
        sizes = np.diff(plan.offsets)
        over = plan.num_packs - plan.bound
        gap = f"{100 * over / plan.bound:.3f} % above" if over else "at"
        percent = 100 / max(ledger.samples_in, 1)
        read = ledger.samples_in - ledger.samples_rejected
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        unit = f", {self.unit}" if self.unit else ""
        return [
            f"samples        {ledger.samples_in:,} in {self.source} (format {self.format}{unit})",
            f"tokens         {ledger.tokens_in:,}, {ledger.tokens_in / max(read, 1):,.0f} a sample",
            self._targets_line(),
            f"packs          {plan.num_packs:,} of {self.capacity:,} tokens in {counted(self.shards, 'shard')}",
            f"fill           {100 * plan.fill_ratio:.2f} %",
            f"lower bound    {counted(plan.bound, 'pack')}: {gap} what any plan needs ({_how(plan)})",
            f"samples/pack   {sizes.mean():.1f} on average, median {np.median(sizes):.0f}, most {sizes.max():,}",
            f"dropped        {counted(ledger.samples_dropped, 'sample')} ({ledger.samples_dropped * percent:.2f} %), "
            f"{_tokens(ledger.tokens_dropped, ledger.tokens_in)}: {_why_dropped(plan)}{self._dropped_note()}",
            f"cut            {ledger.samples_truncated:,} truncated, {_tokens(ledger.tokens_truncated, ledger.tokens_in)} "
            f"lost; {ledger.samples_split:,} split into segments",
            f"rejected       {counted(ledger.samples_rejected, 'row')}{self._rejects_note()}",
            *self._unread_line(),
            f"time           {stages or 'nothing to do: all was there'}",
            *self.warnings(),
        ]

    def warnings(self) -> list[str]:
        """A line for each loss that is much."""
        ledger = self.plan.ledger
        found = []
        if ledger.lost_ratio >= MUCH_LOST:
            found.append(
                f"warning        {100 * ledger.lost_ratio:.2f} % of the tokens are in no pack: see dropped and cut; a "
                f"larger pack loses fewer"
            )
        if ledger.targets_lost_ratio >= max(MUCH_LOST, 1.5 * ledger.lost_ratio):
            found.append(f"warning        {100 * ledger.targets_lost_ratio:.2f} % of the targets are in no pack")
        if ledger.samples_without_target:
            found.append(
                f"warning        {counted(ledger.samples_without_target, 'sample')} in the packs have no target and "
                f"teach nothing"
            )
        return found

    def _targets_line(self) -> str:
        ledger = self.plan.ledger
        if ledger.targets_in is None:
            return "targets        not counted: measured by an earlier brimful"
        share = 100 * ledger.targets_in / max(1, ledger.tokens_in)
        lost = (ledger.targets_dropped or 0) + (ledger.targets_cut or 0)
        gone = f"; {lost:,} lost with what was dropped and cut" if lost else ""
        none = self.table.account.no_target
        reasons = "; ".join(f"{count:,} samples: {reason}" for reason, count in none.most_common())
        without = f"; without any: {reasons}" if reasons else "; every sample has one"
        return f"targets        {ledger.targets_in:,} ({share:.1f} % of the tokens){gone}{without}"

    def _unread_line(self) -> list[str]:
        unread = self.table.account.unread.most_common()
        if not unread:
            return []
        samples = max(1, self.plan.ledger.samples_in)
        shown = ", ".join(f"{name} ({_percent(count / samples)})" for name, count in unread[:_COLUMNS_SHOWN])
        more = f" and {len(unread) - _COLUMNS_SHOWN} more" if len(unread) > _COLUMNS_SHOWN else ""
        return [f"not read       columns {shown}{more} of the rows"]

    def _dropped_note(self) -> str:
        return f", listed in {self.directory}/dropped.jsonl" if self.plan.ledger.samples_dropped else ""

    def _rejects_note(self) -> str:
        if not self.plan.ledger.samples_rejected:
            return ""
        first = f"; first: {self.first_rejected}" if self.first_rejected else ""
        return f", listed in {self.directory}/rejects.jsonl{first}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {
            "source": self.source,
            "format": self.format,
            **({"unit": self.unit} if self.unit else {}),
            "directory": self.directory,
            "capacity": self.capacity,
            "num_packs": self.plan.num_packs,
            "lower_bound": self.plan.bound,
            "fill_ratio": self.plan.fill_ratio,
            "shards": self.shards,
            "plan_fingerprint": self.plan.fingerprint,
            "settings": self.plan.settings,
            "account": self.table.account.as_dict(),
            "seconds": self.seconds,
            **self.plan.ledger.as_dict(),
        }

    def __str__(self) -> str:
        return in_python("\n".join(self.lines()))

    def __repr__(self) -> str:
        return f"PackSummary({self.directory!r}, {self.plan!r})"


def _tokens(lost: int, of: int) -> str:
    return f"{lost:,} tokens ({_percent(lost / max(1, of))})"


def _percent(share: float) -> str:
    return f"{100 * share:.2f} %" if 0 < share < 0.9995 else f"{100 * share:.0f} %"


def _how(plan: Plan) -> str:
    """The algorithm and, where there was a choice, what came of it."""
    outcome = plan.settings.get("outcome")
    return f"{plan.settings['algorithm']}: {outcome}" if outcome else str(plan.settings["algorithm"])


def _why_dropped(plan: Plan) -> str:
    """``longer than a pack; 108 for squares``."""
    by = plan.settings.get("dropped_by", {"tokens": None})
    reasons = []
    for name, count in by.items():
        number = "" if count is None or len(by) == 1 else f"{count:,} "
        reasons.append(number + drop_reason(name))
    return "; ".join(reasons)
