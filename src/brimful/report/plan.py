"""A plan in words."""

from __future__ import annotations

import numpy as np

from brimful.fingerprint import short
from brimful.messages import counted
from brimful.plan import Plan
from brimful.report.lost import Lost
from brimful.report.markup import percent

__all__ = ["describe_plan"]

_ELSEWHERE = ("capacity", "phases", "phase_reports", "dropped_by", "packs_below_min_fill", "groups")


def describe_plan(plan: Plan) -> list[str]:
    """A few lines on a plan: packs, fill, bound, and where every sample went."""
    ledger = plan.ledger
    samples, tokens = max(1, ledger.samples_in), max(1, ledger.tokens_in)
    settings = ", ".join(f"{key} {_spoken(value)}" for key, value in plan.settings.items() if key not in _ELSEWHERE)
    lines = [
        f"packs          {plan.num_packs:,} of {counted(plan.capacity, 'token')}, {short(plan.fingerprint)}",
        f"fill           {100 * plan.fill_ratio:.2f} %",
        *_padding(plan),
        f"lower bound    {counted(plan.bound, 'pack')}; the plan has {plan.num_packs - plan.bound:,} more",
    ]
    if plan.num_packs:
        sizes = np.diff(plan.offsets)
        fill = plan.pack_tokens / plan.capacity
        least, half = fill.min(), np.median(fill)
        lines.append(
            f"samples/pack   {sizes.mean():.1f} on average, median {np.median(sizes):.0f}, most {sizes.max():,}"
        )
        lines.append(f"fill of a pack least {100 * least:.1f} %, median {100 * half:.1f} %")
    lines += [
        f"samples        {ledger.samples_in:,} in: {ledger.samples_packed:,} packed, "
        f"{ledger.samples_dropped:,} dropped ({percent(ledger.samples_dropped / samples, 2)}), "
        f"{ledger.samples_rejected:,} rejected",
        f"tokens         {ledger.tokens_in:,} in: {ledger.tokens_packed:,} packed, "
        f"{ledger.tokens_dropped:,} dropped ({percent(ledger.tokens_dropped / tokens, 2)}), "
        f"{ledger.tokens_truncated:,} truncated ({percent(ledger.tokens_truncated / tokens, 2)})",
        f"cut            {counted(ledger.samples_truncated, 'sample')} truncated, {ledger.samples_split:,} split",
        *_targets(plan),
    ]
    warning = Lost.of(plan).warning
    lines += [f"warning        {warning}"] if warning else []
    lines.append(f"settings       {settings}")
    lines += [f"phase          {line}" for line in plan.settings.get("phase_reports", ())]
    for name, count in plan.settings.get("dropped_by", {}).items():
        lines.append(f"dropped for    {name}: {counted(count, 'sample')}")
    if "groups" in plan.settings:
        lines.append(f"groups         {short(plan.settings['groups'])}, each side by side in one pack")
    if "packs_below_min_fill" in plan.settings:
        before, after = plan.settings["packs_below_min_fill"]
        lines.append(f"below min_fill {counted(before, 'pack')}, packed again; {after:,} remain, last in the plan")
    return lines


def _targets(plan: Plan) -> list[str]:
    """Targets of the loss, where they were measured."""
    ledger = plan.ledger
    if ledger.targets_in is None:
        return []
    lines = [
        f"targets        {ledger.targets_in:,} in: {ledger.targets_packed:,} packed, {ledger.targets_dropped:,} dropped, "
        f"{ledger.targets_cut:,} lost to cuts"
    ]
    if ledger.samples_without_target:
        lines.append(f"without any    {ledger.samples_without_target:,} samples in the packs teach nothing")
    return lines


def _padding(plan: Plan) -> list[str]:
    """What alignment costs: without it, a lower fill has no reason that one could see."""
    if plan.alignment.is_none or not plan.num_packs:
        return []
    behind, at_ends = plan.padding
    share = (behind + at_ends) / (plan.num_packs * plan.capacity)
    return [
        f"padding        {100 * share:.2f} %: {counted(behind, 'token')} behind segments, {at_ends:,} at the ends of rows, as aligned"
    ]


def _spoken(value: object) -> str:
    """A setting in words: ``samples 16 and patches 4,096``."""
    if isinstance(value, dict):
        return " and ".join(f"{name} {most:,}" for name, most in value.items())
    return str(value)
