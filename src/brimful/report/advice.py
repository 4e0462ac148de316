"""The advisor's answer for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from textwrap import wrap

from brimful import messages
from brimful.report.advisor import Advice, Choice
from brimful.report.facts import ALIKE, Facts
from brimful.report.notes import setting
from brimful.report.shares import SourceShare

__all__ = ["describe_advice", "describe_facts", "draw_choices"]

_WIDTH = 110


def describe_advice(advice: Advice) -> list[str]:
    """A few lines: what a step sees now, and what to set so that it sees what it saw.

    >>> from brimful.plan import plan_packs
    >>> from brimful.plan.schedule import CostModel
    >>> from brimful.report.advisor import advise
    >>> plan = plan_packs([4, 4, 2, 2], capacity=8, algorithm="next_fit")
    >>> for line in describe_advice(advise(None, plan, dp_world_size=1, micro_batch_size=1,
    ...     gradient_accumulation_steps=2, cost_model=CostModel(linear=1, quadratic=0)))[:2]:
    ...     print(line)
    samples/step   4, was 2 unpacked -> accumulation 2 → 1 gives 2
    steps/epoch    1, was 2 unpacked -> accumulation 1 gives 2
    """
    best = advice.choices[advice.recommended]
    now, before = advice.packed, advice.unpacked
    same = advice.nothing_to_set
    lines = [
        f"samples/step   {now.samples:,.0f}, was {before.samples:,.0f} unpacked"
        + ("" if same else f" -> {_change(advice, best)} gives {best.step.samples:,.0f}"),
        f"steps/epoch    {now.steps_per_epoch:,}, was {before.steps_per_epoch:,} unpacked"
        + ("" if same else f" -> {setting(advice, best)} gives {best.step.steps_per_epoch:,}"),
        f"tokens/step    {now.tokens:,.0f}, was {before.tokens:,.0f} unpacked, "
        f"{advice.padded_to_longest.step_tokens:,.0f} with padding to the longest",
    ]
    if now.loss_tokens is not None and before.loss_tokens is not None:
        most = "at most " if advice.loss_tokens_are_most else ""
        lines.append(f"loss tok./step {most}{now.loss_tokens:,.0f}, was {before.loss_tokens:,.0f} unpacked")
    return lines


def _change(advice: Advice, best: Choice) -> str:
    """The settings that differ, from what to what."""
    settings = (
        ("accumulation", advice.gradient_accumulation_steps, best.gradient_accumulation_steps),
        ("packs a forward", advice.packs_per_micro_batch, best.packs_per_micro_batch),
    )
    return ", ".join(f"{name} {old:,} → {new:,}" for name, old, new in settings if old != new)


def draw_choices(advice: Advice) -> list[str]:
    """The choices as a table, and the notes with their sources."""
    rate = advice.learning_rate
    warmup = "" if advice.warmup_steps is None else f"  {'warm-up':>8}"
    lines = [
        f"{'packs × accumulation':>20}  {'samples/step':>12}  {'ratio':>6}  {'tokens/step':>12}  {'steps/epoch':>11}  "
        f"{'LR, SGD':>9}  {'LR, Adam':>9}{warmup}"
    ]
    for choice in advice.choices:
        shape = f"{choice.packs_per_micro_batch:,} × {choice.gradient_accumulation_steps:,}"
        rates = [
            f"× {ratio:.2f}" if rate is None else f"{rate * ratio:.3g}"
            for ratio in (choice.linear_lr_ratio, choice.sqrt_lr_ratio)
        ]
        warmup = "" if choice.warmup_steps is None else f"  {choice.warmup_steps:>8,}"
        merits = f"  {', '.join(choice.merits)}" if choice.merits else ""
        lines.append(
            f"{shape:>20}  {choice.step.samples:>12,.0f}  {choice.batch_ratio:>6.2f}  {choice.step.tokens:>12,.0f}  "
            f"{choice.step.steps_per_epoch:>11,}  {rates[0]:>9}  {rates[1]:>9}{warmup}{merits}"
        )
    lines.append("")
    for note in advice.notes:
        first, *more = wrap(f"{note.text} [{note.source}]", _WIDTH)
        lines.append(f"{note.topic:<15}{first}")
        lines += [f"{'':15}{line}" for line in more]
    return lines


def describe_facts(facts: Facts) -> list[str]:
    """What a report adds to the descriptions of lengths and plan: variety, sources, and waiting on ranks."""
    lines = [] if facts.variety is None else [f"variety        {words}" for words in facts.variety.describe()]
    if facts.variety is not None and facts.variety.packs.alikeness > ALIKE:
        lines.append(
            f"               segments of a pack are alike: {messages.setting('mix', True)} exchanges them, at no cost in fill"
        )
    lines += _shares(facts.shares) if facts.shares else []
    if facts.work is not None:
        plain, balanced = facts.work.as_it_comes, facts.work.balanced
        lines.append(
            f"waiting        slowest ÷ mean rank {plain.mean:.3f} (p99 {plain.p99:.3f}), balanced by cost "
            f"{balanced.mean:.3f} (p99 {balanced.p99:.3f}), {facts.run.model}"
        )
    return lines


def _shares(shares: Sequence[SourceShare]) -> list[str]:
    before, after = (max(1, sum(getattr(s, name) for s in shares)) for name in ("tokens", "tokens_packed"))
    return [
        f"share          {100 * share.tokens / before:5.1f} % of tokens, {100 * share.tokens_packed / after:5.1f} % of "
        f"packed tokens: {share.name}"
        for share in shares
    ]
