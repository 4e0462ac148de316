"""Summary of a job, as lines of text and as JSON, and the list of the samples that its plan
dropped.
"""

import json
import os
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from brimful.base.atomic_file import atomic_file
from brimful.base.sharing import wing_of
from brimful.base.typing import AnyPath
from brimful.base.wording import counted, in_python
from brimful.encode.completions import BORROWED_REASON
from brimful.lengths.table import LengthTable
from brimful.plan import Overflow, Plan
from brimful.plan.ledger import MUCH_LOST, drop_reason
from brimful.sources.source import Source

_COLUMNS_SHOWN = 8
"""Unread columns that the summary names; the rest are counted."""


def why_dropped(plan: Plan, table: LengthTable, sample_id: int) -> str:
    """Return the reason why a plan dropped a sample."""
    usable = plan.alignment.usable(plan.capacity)
    longest = plan.settings.longest_segment
    is_longer = int(table.tokens[sample_id]) > longest
    if table.group_size > 1:
        # Chosen and rejected are dropped together, by their total length.
        pair = table.tokens.reshape(-1, table.group_size)[sample_id // table.group_size]
        if int(pair.min()) < 0:
            return "the other sample of the pair was rejected"
        is_longer = int(plan.alignment.rounded(pair).sum()) > usable
        if is_longer and plan.settings.overflow_policy in (Overflow.ERROR, Overflow.DROP):
            return f"chosen and rejected together are longer than a pack ({usable:,} tokens)"
    # Policies that cut keep every long sample, unless the cut took its last target.
    if is_longer and plan.settings.overflow_policy in (Overflow.ERROR, Overflow.DROP):
        return f"{_too_long(plan)} ({longest:,} tokens)"
    if table.targets is not None and not table.targets.counts[sample_id]:
        return "no target of the loss"
    if is_longer:
        return "no target of the loss is left after truncation"
    return "with its group, or for another budget than tokens"


def _too_long(plan: Plan) -> str:
    """Return words for samples that exceed the limit of their tokens."""
    is_path = plan.settings.longest_segment < plan.alignment.usable(plan.capacity)
    return "longer than max_path" if is_path else "longer than a pack"


def write_dropped(path: AnyPath, plan: Plan, table: LengthTable, source: Source) -> None:
    """Write one JSON line for each dropped sample, in the order of their ids; no file without
    any.
    """
    # A file of an earlier job is replaced, even by an empty one.
    if not len(plan.dropped_ids) and not os.path.exists(path):
        return
    with atomic_file(path) as file:
        for sample_id in plan.dropped_ids.tolist():
            assert table.targets is not None  # a job measures them
            sample = {
                "sample_id": sample_id,
                "where": source.where(sample_id),
                "tokens": int(table.tokens[sample_id]),
                "targets": int(table.targets.counts[sample_id]),
                "reason": why_dropped(plan, table, sample_id),
            }
            file.write(
                json.dumps(sample, ensure_ascii=False).encode("utf-8", "surrogatepass") + b"\n"
            )


@dataclass(frozen=True)
class PackSummary:
    """Result of ``pack_dataset``; its text is the summary that ``brimful pack`` prints.

    Attributes:
        source: title of the data set.
        format: of its rows.
        unit: document of a text file (``TextFiles.unit``); empty for other sources.
        directory: of the packs.
        capacity: largest number of tokens in a pack.
        plan, table: of the job.
        shards: number of files of packs.
        first_rejected: place and reason of the first skipped row, with settings marked
            (``brimful.base.wording``).
        seconds: of each stage that had something to do.
        census: of the attachments in the packs; None without any.
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
    census: Any = None

    @cached_property
    def shared(self) -> Any:
        """Account of what the samples share; None if it is nothing."""
        if self.plan.sharing is None:
            return None
        return wing_of(self.plan.sharing).account_of(self.plan, self.table)

    def lines(self) -> list[str]:
        """Return the summary as lines, with settings marked."""
        ledger, plan, draw = self.plan.ledger, self.plan, self.plan.settings.draw
        shared = self.shared
        excess = plan.num_packs - plan.bound
        gap = f"{100 * excess / plan.bound:.3f} % above" if excess else "at"
        num_read = ledger.samples_in - ledger.samples_rejected
        # Only stages that had something to do have seconds: a finished job has none.
        stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in self.seconds.items())
        unit = f", {self.unit}" if self.unit else ""
        first_rejected = f"; first: {self.first_rejected}" if self.first_rejected else ""
        num_rows = self.table.num_rows
        of_rows = "" if num_rows == len(self.table) else f" of {num_rows:,} rows"
        return [
            f"samples        {ledger.samples_in:,}{of_rows} in {self.source} (format "
            f"{self.format}{unit})",
            f"tokens         {ledger.tokens_in:,}, {ledger.tokens_in / num_read:,.0f} a sample",
            *(
                f"encoded by     {libraries}"
                for libraries in self.table.provenance.get("encoded_by", ())
            ),
            *(() if self.census is None else self.census.lines()),
            self._targets_line(),
            f"packs          {plan.num_packs:,} of {self.capacity:,} tokens in "
            f"{counted(self.shards, 'shard')}",
            f"fill           {fill_of(plan, shared)}",
            *(() if shared is None else shared.lines()),
            *(() if draw is None else (draw.describe(plan.outcome.drawn),)),
            f"lower bound    {counted(plan.bound, 'pack')}: {gap} what any plan needs "
            f"({_algorithm(plan)})",
            describe_sizes(plan),
            f"dropped        {counted(ledger.samples_dropped, 'sample')} "
            f"({100 * ledger.samples_dropped / ledger.samples_in:.2f} %), "
            f"{_tokens(ledger.tokens_dropped, ledger.tokens_in)}: {_drop_reasons(plan)}"
            f"{self._listed('dropped.jsonl', ledger.samples_dropped)}",
            f"cut            {ledger.samples_truncated:,} truncated, "
            f"{_tokens(ledger.tokens_truncated, ledger.tokens_in)} lost; {ledger.samples_split:,} "
            "split into segments",
            f"rejected       {counted(ledger.samples_rejected, 'row')}"
            f"{self._listed('rejects.jsonl', ledger.samples_rejected, first_rejected)}",
            *self._unread_lines(),
            f"time           {stages or 'nothing to do: all was there'}",
            *self.warnings(),
        ]

    def warnings(self) -> list[str]:
        """Return a line for each large loss."""
        ledger = self.plan.ledger
        lines = []
        if ledger.lost_ratio >= MUCH_LOST:
            lines.append(
                f"warning        {100 * ledger.lost_ratio:.2f} % of the tokens are in no pack: see "
                "dropped and cut; a larger pack loses fewer"
            )
        # Targets are lost with tokens: the second warning is for losses that affect mainly targets.
        if ledger.targets_lost_ratio >= max(MUCH_LOST, 1.5 * ledger.lost_ratio):
            lines.append(
                f"warning        {100 * ledger.targets_lost_ratio:.2f} % of the targets are in no "
                "pack"
            )
        # Some of these may have been dropped; a few others are not distinguished from them, and
        # cause no warning.
        if ledger.samples_without_target > self.table.account.no_target[BORROWED_REASON]:
            num_taught_nothing = (
                ledger.samples_without_target - self.table.account.no_target[BORROWED_REASON]
            )
            lines.append(
                f"warning        {counted(num_taught_nothing, 'sample')} in the packs have no "
                "target and teach nothing"
            )
        return lines

    def _targets_line(self) -> str:
        """Return the line on targets of the loss: number, losses, and samples without any."""
        ledger = self.plan.ledger
        assert ledger.targets_in is not None  # a job measures them
        share = 100 * ledger.targets_in / ledger.tokens_in
        # Losses count targets, not samples: a cut may take some of a sample's targets.
        cut_reason = (
            "with what was cut" if ledger.samples_truncated else "as first tokens of later segments"
        )
        losses = (
            (ledger.targets_dropped, "with what was dropped"),
            (ledger.targets_cut, cut_reason),
        )
        loss = "".join(f"; {count:,} lost {reason}" for count, reason in losses if count)
        reasons = "; ".join(
            f"{counted(count, 'sample')}: {reason}"
            for reason, count in self.table.account.no_target.most_common()
        )
        no_target = f"without any: {reasons}" if reasons else "every sample has one"
        return (
            f"targets        {ledger.targets_in:,} ({share:.1f} % of the tokens){loss}; {no_target}"
        )

    def _unread_lines(self) -> list[str]:
        """Return the line that names columns that no format read; empty if all were read."""
        columns = self.table.account.unread.most_common()
        num_samples = self.plan.ledger.samples_in
        text = ", ".join(
            f"{name} ({_percent(count / num_samples)})" for name, count in columns[:_COLUMNS_SHOWN]
        )
        remainder = (
            f" and {len(columns) - _COLUMNS_SHOWN} more" if len(columns) > _COLUMNS_SHOWN else ""
        )
        return [f"not read       columns {text}{remainder} of the rows"] if columns else []

    def _listed(self, file_name: str, count: int, note: str = "") -> str:
        """Return the hint to the file that lists samples; empty for no samples."""
        return f", listed in {self.directory}/{file_name}{note}" if count else ""

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for JSON, as in ``summary.json``."""
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
            "settings": self.plan.record,
            **({} if self.shared is None else {"shared": self.shared.as_dict()}),
            "account": self.table.account.as_dict(),
            "seconds": self.seconds,
            **(
                {"media": self.census.as_dict()}
                if self.census is not None and self.census.kinds
                else {}
            ),
            **self.plan.ledger.as_dict(),
        }

    def __str__(self) -> str:
        return in_python("\n".join(self.lines()))

    def __repr__(self) -> str:
        return f"PackSummary({self.directory!r}, {self.plan!r})"


def fill_of(plan: Plan, shared: Any) -> str:
    """Return the fill of a plan in words, with the room that sharing takes."""
    return f"{100 * plan.fill_ratio:.2f} %{'' if shared is None else shared.room(plan)}"


def describe_sizes(plan: Plan) -> str:
    """Describe the numbers of samples in packs. As in reports, a median is a number that occurs,
    the lower one of two.

    >>> from brimful import plan_packs
    >>> describe_sizes(plan_packs([3, 3, 5, 6, 1, 1], capacity=7, seed=None))
    'samples/pack   2.0 on average, median 2, most 3'
    """
    sizes = plan.samples_of_packs
    median = np.percentile(sizes, 50, method="inverted_cdf")
    return f"samples/pack   {sizes.mean():.1f} on average, median {median:,}, most {sizes.max():,}"


def _tokens(count: int, total: int) -> str:
    return f"{count:,} tokens ({_percent(count / total)})"


def _percent(share: float) -> str:
    """Return a share in per cent: two decimals, none for 0 and from 99.95 %."""
    return f"{100 * share:.2f} %" if 0 < share < 0.9995 else f"{100 * share:.0f} %"


def _algorithm(plan: Plan) -> str:
    """Return the algorithm and, for ``auto``, its outcome."""
    name, description = plan.settings.algorithm, plan.outcome.description
    return f"{name}: {description}" if description else name


def _drop_reasons(plan: Plan) -> str:
    """Return the reasons for which samples were dropped, with counts if several.

    One budget gives ``longer than a pack``, two give ``27 longer than a pack; 108 for squares``.
    """
    counts = plan.outcome.dropped_by or {"tokens": 0}
    reasons = []
    for name, count in counts.items():
        num_samples = f"{count:,} " if len(counts) > 1 else ""
        reasons.append(num_samples + (_too_long(plan) if name == "tokens" else drop_reason(name)))
    return "; ".join(reasons)
