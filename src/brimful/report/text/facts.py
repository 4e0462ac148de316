"""The lines that a report adds to its length table, plan and advice."""

from __future__ import annotations

from collections.abc import Sequence

from brimful.messages import setting
from brimful.report.analysis.facts import Facts
from brimful.report.analysis.source_shares import SourceShare


def describe_facts(facts: Facts) -> list[str]:
    """Describe variety, sources, and waiting on ranks."""
    lines = []
    if facts.plan_facts is not None:
        lines += [f"variety        {words}" for words in facts.plan_facts.describe_variety()]
        if facts.plan_facts.is_uniform:
            lines.append(
                f"               segments of a pack are alike: {setting('mix', True)} exchanges them, at no cost in fill"
            )
    if facts.shares:
        lines += _shares(facts.shares)
    if facts.work is not None:
        seeded_costs, balanced_costs = facts.work.as_it_comes, facts.work.balanced
        lines.append(
            f"waiting        slowest ÷ mean rank {seeded_costs.mean:.3f} (p99 {seeded_costs.p99:.3f}), balanced by cost "
            f"{balanced_costs.mean:.3f} (p99 {balanced_costs.p99:.3f}), {facts.run.model}"
        )
    return lines


def _shares(shares: Sequence[SourceShare]) -> list[str]:
    tokens = max(1, sum(share.tokens for share in shares))
    tokens_packed = max(1, sum(share.tokens_packed for share in shares))
    return [
        f"share          {100 * share.tokens / tokens:5.1f} % of tokens, {100 * share.tokens_packed / tokens_packed:5.1f} % "
        f"of packed tokens: {share.name}"
        for share in shares
    ]
