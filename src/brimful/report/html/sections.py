"""Parts of the page that are tables and words: summary, advice, ledger, sources."""

from collections import Counter
from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from brimful.encode.completions import BORROWED_REASON
from brimful.measure import LengthTable
from brimful.messages import counted, percent, whole
from brimful.plan.ledger import MUCH_LOST, Ledger
from brimful.plan.policies.mixture.shares import SourceDraws
from brimful.report.analysis.advice import Advice, Choice, StepSize
from brimful.report.analysis.facts import Facts
from brimful.report.analysis.plan_facts import PlanFacts
from brimful.report.analysis.source_shares import SourceShare
from brimful.report.html.markup import Cell, Column, loss, paragraph, section, share, table, table_of, tile, warning


def summary_tiles(facts: Facts) -> str:
    """Return the numbers to remember, and a warning on large losses."""
    lengths, plan = facts.length_facts, facts.plan_facts
    numbers = []
    if plan is not None:
        numbers += _plan_tiles(plan)
    elif lengths is not None:
        numbers += [
            tile("samples", whole(lengths.number), counted(lengths.tokens, "token")),
            tile("median", whole(lengths.median), "tokens a sample"),
            tile("longest", whole(lengths.longest), "tokens"),
        ]
    if facts.advice is not None:
        step = facts.advice.packed
        samples = f"{counted(round(step.samples), 'sample')} a step"
        numbers.append(tile("steps an epoch", whole(step.steps_per_epoch), samples))
    text = plan.losses.warning if plan is not None else None
    return f'<dl class="tiles">{"".join(numbers)}</dl>' + (warning(f"{text}.") if text else "")


def _plan_tiles(facts: PlanFacts) -> list[str]:
    plan, sizes, losses = facts.plan, facts.sizes, facts.losses
    packs = f"of {whole(plan.num_packs)} × {counted(plan.capacity, 'token')}"
    numbers = [
        tile("fill", percent(plan.fill_ratio, 2), packs),
        tile("packs", whole(plan.num_packs), f"lower bound {whole(plan.bound)}"),
    ]
    if sizes is not None:
        spread = f"median {whole(sizes.median)}, most {whole(sizes.most)}"
        numbers.append(tile("samples a pack", f"{sizes.mean:,.1f}", spread))
    # Name dropped and cut samples only if they exist; "0 dropped" if neither do.
    remarks = []
    if losses.samples or not losses.cut:
        remarks.append(f"{counted(losses.samples, 'sample')} ({percent(losses.samples_ratio, 2)}) dropped")
    if losses.cut:
        remarks.append(f"{counted(losses.cut, 'sample')} cut")
    is_warning = losses.warning is not None
    return [*numbers, tile("tokens lost", percent(losses.tokens_ratio, 2), ", ".join(remarks), much_lost=is_warning)]


def advice_section(advice: Advice, model: str) -> str:
    """Return the unpacked run compared with the packed one, the choices, and the notes."""
    # A run is its name, its step, and the positions of a step: padded rows, or packs with their alignment.
    runs = [
        ("unpacked, padded to the longest", advice.unpacked, advice.padded_to_longest.step_tokens),
        (f"unpacked, padded to {advice.capacity:,}", advice.unpacked, advice.padded_to_capacity.step_tokens),
        ("packed, nothing else changed", advice.packed, advice.positions_per_token * advice.packed.tokens),
    ]
    if not advice.nothing_to_set:
        step = advice.best.step
        runs.append((f"packed, {advice.best_setting}", step, advice.positions_per_token * step.tokens))
    columns: list[Column[tuple[str, StepSize, float]]] = [
        ("run", lambda run: run[0]),
        ("rows a step", lambda run: whole(run[1].rows)),
        ("samples a step", lambda run: whole(run[1].samples)),
        ("tokens a step", lambda run: whole(run[1].tokens)),
        ("with padding", lambda run: whole(run[2])),
    ]
    if advice.unpacked.loss_tokens is not None:
        label = "loss tokens, at most" if advice.loss_tokens_are_most else "loss tokens a step"
        columns.append((label, lambda run: whole(run[1].loss_tokens or 0)))
    columns.append(("steps an epoch", lambda run: whole(run[1].steps_per_epoch)))

    forward = f"micro-batch {advice.micro_batch_size:,}"
    if advice.packs_per_micro_batch != advice.micro_batch_size:
        forward = f"{forward} unpacked and {advice.packs_per_micro_batch:,} packed"
    words = (
        f"{counted(advice.dp_world_size, 'data-parallel rank')}, {forward}, accumulation "
        f"{advice.gradient_accumulation_steps:,}, packs of {advice.packing_factor:,.1f} samples on average. The batch "
        f"size that counts samples without packing counts packs with it."
    )
    notes = "".join(
        f"<div><dt>{escape(note.topic)}</dt><dd>{escape(note.text)}<cite>{escape(note.source)}</cite></dd></div>"
        for note in advice.notes
    )
    return section(
        "packing",
        "What changes when you turn packing on",
        paragraph(words),
        table_of(columns, runs, strong=len(runs) - 1),
        f"<h3>What you can set</h3>{_choices(advice)}",
        f'<dl class="notes">{notes}</dl>',
        paragraph(f"Arithmetic is by the cost model of {model}; kernels and networks have their own limits.", "fine"),
    )


def _choices(advice: Advice) -> str:
    def setting(choice: Choice) -> Cell:
        merits = ", ".join("as set" if merit == "keeps settings" else merit for merit in choice.merits)
        shape = f"{choice.packs_per_micro_batch:,} × {choice.gradient_accumulation_steps:,}"
        return shape, f" <small>{escape(merits)}</small>" if merits else ""

    columns: list[Column[Choice]] = [
        ("packs a forward × accumulation", setting),
        ("samples a step", lambda choice: whole(choice.step.samples)),
        ("ratio", lambda choice: f"{choice.batch_ratio:.2f}"),
        ("steps an epoch", lambda choice: whole(choice.step.steps_per_epoch)),
        ("SGD", lambda choice: advice.rates(choice)[0]),
        ("Adam", lambda choice: advice.rates(choice)[1]),
    ]
    if advice.warmup_steps is not None:
        columns.append(("warm-up steps", lambda choice: whole(choice.warmup_steps or 0)))
    rate = "learning rate" if advice.learning_rate is not None else "factor of the learning rate"
    words = (
        f"SGD and Adam: the {rate} by linear scaling and by square root scaling. At a ratio near 1 keep the old one."
    )
    return table_of(columns, advice.choices, strong=advice.recommended) + paragraph(words, "fine")


def ledger_section(facts: PlanFacts, lengths: LengthTable | None, rejects: Sequence[Sequence[Any]]) -> str:
    """Return the account of every sample, every token and every target of the loss."""
    plan, ledger = facts.plan, facts.plan.ledger
    samples, tokens = max(1, ledger.samples_in), max(1, ledger.tokens_in)
    longer = f"longer than {counted(plan.capacity, 'token')}, overflow policy {plan.settings.overflow_policy.value}"

    def row(name: str, num_samples: int, num_tokens: int | None, reason: str = "", is_loss: bool = False) -> list[Cell]:
        token_cells: tuple[Cell, Cell] = ("–", "–")
        if num_tokens is not None:
            token_cells = (whole(num_tokens), loss(num_tokens / tokens) if is_loss else percent(num_tokens / tokens, 2))
        why = reason if num_samples or not reason else "none was"
        return [name, whole(num_samples), percent(num_samples / samples, 2), *token_cells, why]

    rows = [
        row("in", ledger.samples_in, ledger.tokens_in),
        row("packed", ledger.samples_packed, ledger.tokens_packed),
        row("dropped", ledger.samples_dropped, ledger.tokens_dropped, _why_dropped(facts, longer), is_loss=True),
        row("rejected", ledger.samples_rejected, None, "could not be read or encoded"),
        row("truncated, of those packed", ledger.samples_truncated, ledger.tokens_truncated, longer, is_loss=True),
        row("split, of those packed", ledger.samples_split, 0, longer),
    ]
    sums = (
        "Samples: in = packed + dropped + rejected. Tokens: in = packed + dropped + truncated. A rejected sample has "
        "no length. Tokens of split samples are all kept."
    )
    parts = [table(["", "samples", "of all", "tokens", "of all", "why"], rows), paragraph(sums, "fine")]
    parts += _targets(ledger, 0 if lengths is None else lengths.account.no_target[BORROWED_REASON])
    if lengths is not None:
        parts += _account(lengths.account.no_target, lengths.account.unread, samples)
    behind_segments, at_row_ends = plan.padding
    if behind_segments or at_row_ends:
        ratio = (behind_segments + at_row_ends) / (plan.num_packs * plan.capacity)
        text = (
            f"Alignment adds {counted(behind_segments, 'token')} of padding after segments and {whole(at_row_ends)} at the "
            f"ends of rows, {percent(ratio, 2)} of the packs, which lowers the fill by as much."
        )
        parts.append(paragraph(text, "fine"))
    if rejects:
        reject_rows = [[str(origin), f"sample {sample_id}", str(reason)] for sample_id, origin, reason in rejects]
        parts += ["<h3>Rejected rows</h3>", table(["where", "which", "why"], reject_rows)]
        if ledger.samples_rejected > len(rejects):
            parts.append(paragraph(f"and {ledger.samples_rejected - len(rejects):,} more", "fine"))
    return section("ledger", "Where everything went", *parts)


def _why_dropped(facts: PlanFacts, longer: str) -> str:
    """Name the reasons of dropped samples: too long, without a target, or both."""
    num_without_target = facts.plan.outcome.dropped_by.get("no_target", 0)
    if not num_without_target:
        return longer
    reason = f"{whole(num_without_target)} without a target of the loss"
    return f"{longer}; {reason}" if facts.plan.ledger.samples_dropped > num_without_target else reason


def _targets(ledger: Ledger, num_mismatches: int) -> list[str]:
    """Return the account of the targets of the loss; nothing if they were not measured.

    Mismatches of KTO have no targets by design; some of them, and of others without targets, may have been dropped.
    """
    if ledger.targets_in is None:
        return []
    text = (
        f"Targets of the loss: {whole(ledger.targets_in)} in, {percent(ledger.targets_in / max(1, ledger.tokens_in), 1)} "
        f"of the tokens = {whole(ledger.targets_packed or 0)} packed + {whole(ledger.targets_dropped or 0)} dropped + "
        f"{whole(ledger.targets_cut or 0)} cut off."
    )
    parts = [paragraph(text)]
    if ledger.targets_lost_ratio >= MUCH_LOST:
        parts.append(warning(f"{percent(ledger.targets_lost_ratio, 2)} of the targets are in no pack."))
    if num_mismatches:
        mismatches = counted(min(num_mismatches, ledger.samples_without_target), "sample")
        parts.append(
            paragraph(f"{mismatches} in the packs are mismatches of KTO, for its KL term: they have no targets.")
        )
    if ledger.samples_without_target > num_mismatches:
        samples = counted(ledger.samples_without_target - num_mismatches, "sample")
        parts.append(warning(f"{samples} in the packs have no target: they teach nothing."))
    return parts


def _account(no_target: Counter[str], unread_columns: Counter[str], num_samples: int) -> list[str]:
    """Return samples without targets by reason, and columns of the rows that were not read."""
    parts = []
    if no_target:
        rows = [[whole(count), reason] for reason, count in no_target.most_common()]
        parts += ["<h3>Samples without a target of their own</h3>", table(["samples", "why"], rows)]
    if unread_columns:
        names = ", ".join(f"{name} ({percent(count / num_samples, 0)})" for name, count in unread_columns.most_common())
        text = f"Columns of the rows that were not read, with the share of samples that have them: {names}."
        parts.append(paragraph(text, "fine"))
    return parts


def mixture_section(sources: list[SourceDraws]) -> str:
    """Return the share of each source of a mixture: requested and realized."""
    columns: list[Column[SourceDraws]] = [
        ("source", lambda source: source.source),
        ("asked for", lambda source: share(source.requested, "one")),
        ("realised", lambda source: share(source.realised, "two")),
        ("samples packed", lambda source: whole(source.draws)),
        ("of them repeats", lambda source: whole(source.draws - source.distinct)),
        ("tokens packed", lambda source: whole(source.tokens)),
        ("samples left", lambda source: whole(source.left)),
    ]
    if any(source.factor is not None for source in sources):
        columns.append(("targets count", lambda source: f"{source.factor or 0:.4g}"))
    words = "Shares that were requested, and shares in the packs; the remaining samples come in later epochs."
    return section("mixture", "Mixture", paragraph(words), table_of(columns, sources))


def shares_section(shares: list[SourceShare], has_plan: bool) -> str:
    """Return the share of each source, before packing and after."""

    def ratio(name: str, colour: str) -> Callable[[SourceShare], Cell]:
        total = max(1, sum(getattr(source, name) for source in shares))
        return lambda source: share(getattr(source, name) / total, colour)

    columns: list[Column[SourceShare]] = [
        ("source", lambda source: source.name),
        ("samples", lambda source: whole(source.samples)),
        ("of all", ratio("samples", "one")),
        ("of those packed", ratio("samples_packed", "one")),
        ("tokens", lambda source: whole(source.tokens)),
        ("of all", ratio("tokens", "two")),
        ("of those packed", ratio("tokens_packed", "two")),
        # A source that loses much is marked, even if the whole plan loses little.
        ("tokens lost", lambda source: loss((source.tokens - source.tokens_packed) / max(1, source.tokens))),
    ]
    # Without a plan nothing is packed or lost.
    if not has_plan:
        columns = [column for column in columns if column[0] not in ("of those packed", "tokens lost")]
    words = (
        "Share of each source before packing and in the packs: if they differ, dropping and cutting changed the mix."
    )
    return section("sources", "Sources", paragraph(words), table_of(columns, shares))
