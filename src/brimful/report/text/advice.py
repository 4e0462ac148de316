"""Advice on packing as lines and as a table."""

from textwrap import wrap

from brimful.report.analysis.advice import Advice

_NOTE_WIDTH = 125
"""Characters of a line of notes, with its topic."""


def describe_advice(advice: Advice) -> list[str]:
    """Describe a step before and after packing, and the settings that restore it.

    >>> from brimful.plan import plan_packs
    >>> from brimful.plan.schedule import CostModel
    >>> from brimful.report.analysis.advise import advise
    >>> plan = plan_packs([4, 4, 2, 2], capacity=8, algorithm="next_fit")
    >>> for line in describe_advice(advise(None, plan, dp_world_size=1, micro_batch_size=1,
    ...     gradient_accumulation_steps=2, cost_model=CostModel(linear=1, quadratic=0)))[:2]:
    ...     print(line)
    samples/step   4, was 2 unpacked -> accumulation 2 → 1 gives 2
    steps/epoch    1, was 2 unpacked -> accumulation 1 gives 2
    """
    packed_step, unpacked_step, best_step = advice.packed, advice.unpacked, advice.best.step
    samples = f"samples/step   {packed_step.samples:,.0f}, was {unpacked_step.samples:,.0f} unpacked"
    steps = f"steps/epoch    {packed_step.steps_per_epoch:,}, was {unpacked_step.steps_per_epoch:,} unpacked"
    if not advice.nothing_to_set:
        samples += f" -> {_changes(advice)} gives {best_step.samples:,.0f}"
        steps += f" -> {advice.best_setting} gives {best_step.steps_per_epoch:,}"
    lines = [
        samples,
        steps,
        f"tokens/step    {packed_step.tokens:,.0f}, was {unpacked_step.tokens:,.0f} unpacked, "
        f"{advice.padded_to_longest.step_tokens:,.0f} with padding to the longest",
    ]
    if packed_step.loss_tokens is not None and unpacked_step.loss_tokens is not None:
        bound = "at most " if advice.loss_tokens_are_most else ""
        lines.append(
            f"loss tok./step {bound}{packed_step.loss_tokens:,.0f}, was {unpacked_step.loss_tokens:,.0f} unpacked"
        )
    return lines


def _changes(advice: Advice) -> str:
    """List the settings that differ in the recommended choice, with both values."""
    best = advice.best
    settings = (
        ("accumulation", advice.gradient_accumulation_steps, best.gradient_accumulation_steps),
        ("packs a forward", advice.packs_per_micro_batch, best.packs_per_micro_batch),
    )
    return ", ".join(f"{name} {current:,} → {value:,}" for name, current, value in settings if current != value)


def draw_choices(advice: Advice) -> list[str]:
    """Draw the choices as a table, and list the notes with their sources."""
    warmup = "" if advice.warmup_steps is None else f"  {'warm-up':>8}"
    lines = [
        f"{'packs × accumulation':>20}  {'samples/step':>12}  {'ratio':>6}  {'tokens/step':>12}  {'steps/epoch':>11}  "
        f"{'LR, SGD':>9}  {'LR, Adam':>9}{warmup}"
    ]
    for choice in advice.choices:
        shape = f"{choice.packs_per_micro_batch:,} × {choice.gradient_accumulation_steps:,}"
        sgd, adam = advice.rates(choice)
        warmup = "" if choice.warmup_steps is None else f"  {choice.warmup_steps:>8,}"
        merits = f"  {', '.join(choice.merits)}" if choice.merits else ""
        lines.append(
            f"{shape:>20}  {choice.step.samples:>12,.0f}  {choice.batch_ratio:>6.2f}  {choice.step.tokens:>12,.0f}  "
            f"{choice.step.steps_per_epoch:>11,}  {sgd:>9}  {adam:>9}{warmup}{merits}"
        )
    lines.append("")
    for note in advice.notes:
        # Only the first line starts with the topic.
        topic, indent = f"{note.topic:<15}", " " * 15
        lines += wrap(f"{note.text} [{note.source}]", _NOTE_WIDTH, initial_indent=topic, subsequent_indent=indent)
    return lines
