"""A report as lines."""

from brimful.messages import setting
from brimful.report.analysis.facts import Facts
from brimful.report.text.advice import describe_advice, draw_choices
from brimful.report.text.comparison import draw_sweep
from brimful.report.text.lengths import describe_lengths, draw_histogram
from brimful.report.text.plan import describe_plan


def describe_facts(facts: Facts) -> list[str]:
    """Describe everything, with the choices and the steps only for a run of more than one pack a step."""
    lines = []
    has_steps = facts.run.packs_per_step > 1
    if facts.table is not None:
        lines += [*describe_lengths(facts.table), "", *draw_histogram(facts.table)]
    if facts.plan is not None:
        lines += ["", *describe_plan(facts.plan)]
    if facts.plan_facts is not None and facts.plan_facts.variety is not None:
        lines += [f"variety        {words}" for words in facts.plan_facts.variety.describe()]
        if facts.plan_facts.is_uniform:
            lines.append(
                f"               segments of a pack are alike: {setting('mix', True)} exchanges them, at no cost in fill"
            )
    lines += facts.media.lines()
    lines += [f"budget         {fill.describe()}" for fill in facts.budgets]
    if facts.shares:
        tokens = max(1, sum(share.tokens for share in facts.shares))
        tokens_packed = max(1, sum(share.tokens_packed for share in facts.shares))
        lines += [
            f"share          {100 * share.tokens / tokens:5.1f} % of tokens, "
            f"{100 * share.tokens_packed / tokens_packed:5.1f} % of packed tokens: {share.name}"
            for share in facts.shares
        ]
    if facts.work is not None:
        seeded_costs, balanced_costs = facts.work.as_it_comes, facts.work.balanced
        lines.append(
            f"waiting        slowest ÷ mean rank {seeded_costs.mean:.3f} (p99 {seeded_costs.p99:.3f}), balanced by cost "
            f"{balanced_costs.mean:.3f} (p99 {balanced_costs.p99:.3f}), {facts.run.model}"
        )
        lines += [
            f"{one.part.value.replace('_', ' '):<14} {100 * one.share:.1f} % of the cost, slowest ÷ mean rank "
            f"{one.as_it_comes:.3f}, balanced {one.balanced:.3f} (for it alone {one.alone:.3f})"
            for one in facts.work.parts
        ]
        lines += [f"               {note}" for note in facts.work.notes]
    if facts.advice is not None:
        lines += ["", *describe_advice(facts.advice)]
        if has_steps:
            lines += ["", *draw_choices(facts.advice)]
        else:
            flags = [setting(name) for name in ("dp_world_size", "micro_batch_size", "gradient_accumulation_steps")]
            lines.append(f"               for your run add {', '.join(flags)}")
    if facts.table is not None:
        lines += ["", "other capacities, by best fit decreasing", *draw_sweep(facts.sweep, has_steps)]
    return lines
