"""Lengths as lines and as a histogram."""

import numpy as np

from brimful.base.fingerprint import short
from brimful.base.wording import counted
from brimful.measure import LengthTable


def describe_lengths(table: LengthTable) -> list[str]:
    """Describe a length table.

    >>> describe_lengths(LengthTable.from_lengths([3, 5, 10]))[0]
    'lengths        3 samples, 18 tokens, ee6a191'
    """
    lines = [
        f"lengths        {counted(len(table), 'sample')}, {counted(table.total_tokens, 'token')}, {short(table.fingerprint)}"
    ]
    for name, column in table.budgets.items():
        # Rejected samples have no length.
        values = column[table.tokens >= 0]
        if len(values):
            p5, p50, p95, p99 = np.percentile(values, [5, 50, 95, 99]).astype(int).tolist()
            spread = f"p5 {p5:,}, median {p50:,}, p95 {p95:,}, p99 {p99:,}"
            lines.append(
                f"{name:<15}mean {values.mean():,.1f}, shortest {values.min():,}, {spread}, longest {values.max():,}"
            )
    if table.targets is not None:
        share = 100 * table.targets.total / max(1, table.total_tokens)
        no_target, unread = table.account.no_target.most_common(), table.account.unread.most_common()
        lines.append(f"targets        {table.targets.total:,} ({share:.1f} % of the tokens) if nothing is cut")
        lines += [f"without any    {count:,} samples: {reason}" for reason, count in no_target]
        if unread:
            names = ", ".join(f"{name} ({100 * count / max(1, len(table)):.0f} %)" for name, count in unread)
            lines.append(f"not read       columns {names} of the rows")
    if table.provenance:
        lines.append(f"source         {table.provenance['source']}, {short(table.provenance['source_fingerprint'])}")
    if len(table.rejected_ids):
        filter_words = "".join(f", {count:,} by filter {name}" for name, count in table.account.filtered.most_common())
        lines.append(
            f"rejected       {counted(len(table.rejected_ids), 'row' if filter_words else 'malformed row')}{filter_words}"
        )
        lines += [f"               {origin}: {reason}" for _, origin, reason in table.rejects[:5]]
    return lines
