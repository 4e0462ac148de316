"""The report as one page: nothing is loaded, nothing runs, and its numbers are in it as JSON."""

import json
from base64 import b64encode
from html import escape
from importlib.resources import files

from brimful import __version__
from brimful.base.fingerprint import short
from brimful.base.wording import counted, percent, whole
from brimful.encode.completions import BORROWED_REASON
from brimful.measure import LengthTable
from brimful.plan.ledger import MUCH_LOST, Ledger
from brimful.report import table_model as tables
from brimful.report.analysis.advice import Advice
from brimful.report.analysis.facts import MAX_REJECTS, Facts
from brimful.report.analysis.plan_facts import LengthFacts, PlanFacts
from brimful.report.analysis.rank_balance import RankBalance
from brimful.report.analysis.shown_packs import ShownMedium, ShownPack, ShownSegment, ShownText
from brimful.report.html.charts import capacity_chart, fill_chart, lengths_chart, sizes_chart
from brimful.report.html.markup import pair, paragraph, section, table, tile, warning
from brimful.report.table_model import ReportTable, Row

DATA_ID = "report-data"
"""Id of the element that holds the numbers as JSON, as ``brimful report --json`` prints them."""


def render_page(facts: Facts) -> str:
    """Return one HTML page. Equal facts give equal pages: it contains no date.

    The page forbids itself to load or run anything (``Content-Security-Policy``), so it can be
    mailed, kept with a checkpoint, and opened without a network.

    >>> from brimful.measure import LengthTable
    >>> from brimful.report.analysis.facts import TrainingRun, gather_facts
    >>> page = render_page(gather_facts("<b>", table=LengthTable.from_lengths([3, 5]), plan=None, run=TrainingRun()))
    >>> "<h1>&lt;b&gt;</h1>" in page
    True
    """
    # The style sheet is inside the page: the policy below forbids loading one.
    style = files("brimful.report.html").joinpath("page.css").read_text(encoding="utf-8")
    title, body = escape(facts.title), "\n".join(sections_of(facts))
    # Images are inside the page too, and only a page that has some may show them.
    images = "; img-src data:" if facts.shown else ""
    names = [f"brimful {__version__}"]
    if facts.length_facts is not None and facts.length_facts.fingerprint:
        names.append(f"lengths {facts.length_facts.fingerprint}")
    if facts.plan is not None:
        names.append(f"plan {short(facts.plan.fingerprint)}")
    footer = f"The numbers of this page are in it as JSON, in the element {DATA_ID}."
    # Escapes of JSON itself: nothing in the text can end the element around it.
    data = json.dumps(facts.as_dict(), ensure_ascii=False)
    for character in "&<>":
        data = data.replace(character, f"\\u{ord(character):04x}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src '
        "'unsafe-inline'"
        f'{images}">'
        f"<title>{title} – brimful report</title>\n<style>\n{style}</style></head>\n<body><main>"
        f"<header><h1>{title}</h1><p>{escape(_subtitle(facts))}</p></header>\n"
        f"{body}\n<footer>{', '.join(names)}. {footer}</footer></main>\n"
        f'<script type="application/json" id="{DATA_ID}">{data}</script>\n</body></html>\n'
    )


def _subtitle(facts: Facts) -> str:
    lengths, plan = facts.length_facts, facts.plan
    if plan is not None:
        return (
            f"{counted(plan.ledger.samples_packed, 'sample')} in {counted(plan.num_packs, 'pack')} "
            f"of {counted(plan.capacity, 'token')}, {plan.settings.algorithm}, overflow "
            f"{plan.settings.overflow_policy.value}, seed {plan.settings.seed}"
        )
    if lengths is None:
        return "no samples"
    return f"{counted(lengths.number, 'sample')}, {counted(lengths.tokens, 'token')}"


def sections_of(facts: Facts) -> list[str]:
    """Return the parts of the page in the order of questions: result, training, evidence."""
    plan, model = facts.plan_facts, facts.run.model
    blocks = [summary_tiles(facts)]
    if facts.advice is not None:
        blocks.append(advice_section(facts.advice, model))
    if facts.length_facts is not None:
        capacity = None if facts.plan is None else facts.plan.capacity
        blocks.append(lengths_section(facts.length_facts, capacity))
    if plan is not None:
        blocks.append(packs_section(plan))
    if facts.shown:
        blocks.append(shown_packs_section(facts.shown))
    if facts.sweep:
        blocks.append(capacity_section(facts))
    if plan is not None:
        blocks.append(ledger_section(plan, facts.table))
    blocks += [
        section(entry.name, entry.title, paragraph(entry.caption), table(entry.table))
        for entry in tables.titled_tables(facts)
    ]
    if facts.work is not None:
        blocks.append(work_section(facts.work, model))
    return blocks


def summary_tiles(facts: Facts) -> str:
    """Return the numbers to remember, and a warning on large losses."""
    lengths, plan, losses = facts.length_facts, facts.plan, None
    figures = []
    if facts.plan_facts is not None and plan is not None:
        sizes, losses = facts.plan_facts.sizes, facts.plan_facts.losses
        packs = f"of {plan.num_packs:,} × {counted(plan.capacity, 'token')}"
        figures += [
            tile("fill", percent(plan.fill_ratio, 2), packs),
            tile("packs", whole(plan.num_packs), f"lower bound {plan.bound:,}"),
        ]
        if sizes is not None:
            spread = f"median {sizes.median:,}, most {sizes.most:,}"
            figures.append(tile("samples a pack", f"{sizes.mean:,.1f}", spread))
        # Name dropped and cut samples only if they exist; "0 dropped" if neither do.
        remarks = []
        if losses.samples or not losses.cut:
            ratio = percent(losses.samples_ratio, 2)
            remarks.append(f"{counted(losses.samples, 'sample')} ({ratio}) dropped")
        if losses.cut:
            remarks.append(f"{counted(losses.cut, 'sample')} cut")
        share = percent(losses.tokens_ratio, 2)
        figures.append(
            tile("tokens lost", share, ", ".join(remarks), much_lost=losses.warning is not None)
        )
    elif lengths is not None:
        figures += [
            tile("samples", whole(lengths.number), counted(lengths.tokens, "token")),
            tile("median", whole(lengths.median), "tokens a sample"),
            tile("longest", whole(lengths.longest), "tokens"),
        ]
    if facts.shared is not None:
        speedup, tokens = facts.shared.speedup, facts.shared.tokens
        fewer = f"{tokens.ratio:.2f} times fewer tokens by what samples share"
        figures.append(tile("speed-up", f"{speedup:.2f} ×", fewer))
    if facts.advice is not None:
        step = facts.advice.packed
        samples = f"{counted(round(step.samples), 'sample')} a step"
        figures.append(tile("steps an epoch", whole(step.steps_per_epoch), samples))
    tiles = f'<dl class="tiles">{"".join(figures)}</dl>'
    return tiles + (warning(f"{losses.warning}.") if losses and losses.warning else "")


def advice_section(advice: Advice, model: str) -> str:
    """Return the unpacked run compared with the packed one, the choices, and the notes."""
    forward = f"micro-batch {advice.micro_batch_size:,}"
    if advice.packs_per_micro_batch != advice.micro_batch_size:
        forward = f"{forward} unpacked and {advice.packs_per_micro_batch:,} packed"
    sentence = (
        f"{counted(advice.dp_world_size, 'data-parallel rank')}, {forward}, accumulation "
        f"{advice.gradient_accumulation_steps:,}, packs of {advice.packing_factor:,.1f} samples on "
        "average. The batch size that counts samples without packing counts packs with it."
    )
    rate = "factors of the learning rate" if advice.learning_rate is None else "learning rates"
    rules = (
        f"SGD and Adam: {rate} by linear scaling and by square root scaling. At a ratio near "
        "1 keep the old one."
    )
    notes = "".join(
        f"<div><dt>{escape(note.topic)}</dt><dd>{escape(note.text)}<cite>{escape(note.source)}</cite></dd></div>"
        for note in advice.notes
    )
    arithmetic = (
        f"Arithmetic is by the cost model of {model}; kernels and networks have their own limits."
    )
    return section(
        "packing",
        "What changes when you turn packing on",
        paragraph(sentence),
        table(tables.runs_table(advice)),
        "<h3>What you can set</h3>",
        table(tables.choices_table(advice)),
        paragraph(rules, "fine"),
        f'<dl class="notes">{notes}</dl>',
        paragraph(arithmetic, "fine"),
    )


def lengths_section(lengths: LengthFacts, capacity: int | None) -> str:
    """Return the distribution of lengths."""
    marks = {
        "shortest": lengths.shortest,
        "5 % are at most": lengths.p5,
        "half are at most": lengths.median,
        "mean": round(lengths.mean),
        "95 % are at most": lengths.p95,
        "99 % are at most": lengths.p99,
        "longest": lengths.longest,
    }
    rows: list[Row] = [{"length": name, "tokens": tokens} for name, tokens in marks.items()]
    verb = "holds" if lengths.number == 1 else "hold"
    sentence = (
        f"{counted(lengths.number, lengths.of[:-1])} {verb} {counted(lengths.tokens, 'token')}."
    )
    if lengths.of == "segments":
        sentence += (
            " The length table is missing, so these are the segments of the plan, after "
            "dropping and cutting."
        )
    blocks = pair(lengths_chart(lengths, capacity), table(ReportTable(rows)))
    return section("lengths", "Lengths", paragraph(sentence), blocks)


def packs_section(facts: PlanFacts) -> str:
    """Return the distributions of fill and of samples in a pack; nothing without packs."""
    if facts.fill is None or facts.sizes is None:
        return ""
    num_packs = facts.plan.num_packs
    charts = pair(fill_chart(facts.fill, num_packs), sizes_chart(facts.sizes, num_packs))
    return section("packs", "Packs", charts)


def capacity_section(facts: Facts) -> str:
    """Return fill, steps and losses at other capacities."""
    points = facts.sweep
    capacity = None if facts.plan is None else facts.plan.capacity
    sentence = (
        "The same lengths planned again, best fit decreasing, without samples longer than "
        f"the capacity{'' if facts.shared is None else ', each sample on its own'}."
    )
    return section(
        "capacities",
        "Other capacities",
        paragraph(sentence),
        capacity_chart(points, capacity),
        table(tables.sweep_table(points)),
    )


def work_section(work: RankBalance, model: str) -> str:
    """Return the cost on each rank, and how long ranks wait for each other."""
    sentence = (
        f"{model}: the costliest pack costs {work.pack_cost_spread:.2f} times the mean. "
        f"{counted(work.num_steps, 'full step')} on "
        f"{counted(len(work.balanced.rank_tokens), 'rank')}."
    )
    reading = (
        "Slowest rank ÷ mean rank: 1.000 = no wait. The first three columns are for sharded "
        "parameters (FSDP, ZeRO-3), where ranks meet at every micro-batch. "
        "The last two: most ÷ mean over the ranks, of an epoch."
    )
    blocks = [
        paragraph(sentence),
        table(tables.orders_table(work)),
        paragraph(reading, "fine"),
    ]
    if work.parts:
        reading = (
            "Parts of the model run one after the other, and ranks wait for each other in each: "
            "slowest ÷ mean rank over the epoch. The last column is what an order for that part "
            "alone would reach."
        )
        blocks += [table(tables.components_table(work.parts)), paragraph(reading, "fine")]
    blocks += [warning(f"{note[0].upper()}{note[1:]}.") for note in work.notes]
    return section("work", "Cost on ranks and steps", *blocks)


def ledger_section(facts: PlanFacts, lengths: LengthTable | None) -> str:
    """Return the account of every sample, every token and every target of the loss."""
    plan, ledger = facts.plan, facts.plan.ledger
    samples, tokens = max(1, ledger.samples_in), max(1, ledger.tokens_in)
    policy = plan.settings.overflow_policy.value
    most = plan.settings.max_path or plan.capacity
    longer = f"longer than {counted(most, 'token')}, overflow policy {policy}"

    def row(
        name: str, num_samples: int, num_tokens: int, reason: str = "", is_loss: bool = False
    ) -> Row:
        ratio = num_tokens / tokens
        return {
            "": name,
            "samples": num_samples,
            "of samples": percent(num_samples / samples, 2),
            "tokens": num_tokens,
            "of tokens": tables.loss(ratio) if is_loss else percent(ratio, 2),
            "why": reason if num_samples or not reason else "none was",
        }

    rows = [
        row("in", ledger.samples_in, ledger.tokens_in),
        row("packed", ledger.samples_packed, ledger.tokens_packed),
        *(
            [
                row("shared", 0, ledger.tokens_shared)
                | {"samples": None, "of samples": None, "why": "in the packs for another sample"}
            ]
            if ledger.tokens_shared
            else []
        ),
        row("dropped", ledger.samples_dropped, ledger.tokens_dropped, facts.losses.why, True),
        row("rejected", ledger.samples_rejected, 0, "could not be read or encoded")
        | {"tokens": None, "of tokens": None},
        row(
            "truncated, of those packed",
            ledger.samples_truncated,
            ledger.tokens_truncated,
            longer,
            True,
        ),
        row("split, of those packed", ledger.samples_split, 0, longer),
    ]
    shared = "shared + " if ledger.tokens_shared else ""
    sums = (
        f"Samples: in = packed + dropped + rejected. Tokens: in = packed + {shared}dropped + "
        "truncated. A rejected sample has no length. Tokens of split samples are all kept."
    )
    blocks = [table(ReportTable(rows)), paragraph(sums, "fine")]
    account = None if lengths is None else lengths.account
    blocks += _targets(ledger, 0 if account is None else account.no_target[BORROWED_REASON])
    if account is not None and account.no_target:
        reasons: list[Row] = [
            {"why": reason, "samples": count} for reason, count in account.no_target.most_common()
        ]
        blocks += ["<h3>Samples without a target of their own</h3>", table(ReportTable(reasons))]
    after_segments, at_row_ends = plan.padding
    if after_segments or at_row_ends:
        ratio = (after_segments + at_row_ends) / (plan.num_packs * plan.capacity)
        text = (
            f"Alignment adds {counted(after_segments, 'token')} of padding after segments and "
            f"{at_row_ends:,} at the ends of rows, {percent(ratio, 2)} of the packs, which lowers "
            "the fill by as much."
        )
        blocks.append(paragraph(text, "fine"))
    rejects = () if lengths is None else lengths.rejects[:MAX_REJECTS]
    if rejects:
        reject_rows: list[Row] = [
            {"where": str(origin), "which": f"sample {sample_id}", "why": str(reason)}
            for sample_id, origin, reason in rejects
        ]
        blocks += ["<h3>Rejected rows</h3>", table(ReportTable(reject_rows))]
        if ledger.samples_rejected > len(rejects):
            blocks.append(paragraph(f"and {ledger.samples_rejected - len(rejects):,} more", "fine"))
    return section("ledger", "Where everything went", *blocks)


def _targets(ledger: Ledger, num_mismatches: int) -> list[str]:
    """Return the account of the targets of the loss; nothing if they were not measured.

    Mismatches of KTO have no targets by design; some of them, and of others without targets, may
    have been dropped.
    """
    if ledger.targets_in is None:
        return []
    ratio = percent(ledger.targets_in / max(1, ledger.tokens_in))
    blocks = [
        paragraph(
            f"Targets of the loss: {ledger.targets_in:,} in, {ratio} of the tokens = "
            f"{ledger.targets_packed:,} packed + {ledger.targets_dropped:,} dropped + "
            f"{ledger.targets_cut:,} cut off."
        )
    ]
    if ledger.targets_lost_ratio >= MUCH_LOST:
        share = percent(ledger.targets_lost_ratio, 2)
        blocks.append(warning(f"{share} of the targets are in no pack."))
    mismatches = min(num_mismatches, ledger.samples_without_target)
    if mismatches:
        text = (
            f"{counted(mismatches, 'sample')} in the packs are mismatches of KTO, for its KL term"
        )
        blocks.append(paragraph(f"{text}: they have no targets."))
    if ledger.samples_without_target > mismatches:
        samples = counted(ledger.samples_without_target - mismatches, "sample")
        blocks.append(warning(f"{samples} in the packs have no target: they teach nothing."))
    return blocks


def shown_packs_section(packs: list[ShownPack]) -> str:
    """Return packs as they are; every name and text of the data is escaped."""
    sentence = (
        "Segments of a few packs, with their texts and media; targets of the loss are marked."
    )
    return section(
        "shown",
        "Some packs, as they are",
        paragraph(sentence),
        f"<div>{''.join(map(_pack, packs))}</div>",
    )


def _pack(pack: ShownPack) -> str:
    uses = ", ".join(
        f"{whole(amount)} of {whole(capacity)} {name} ({percent(amount / capacity)})"
        for name, (amount, capacity) in pack.budgets.items()
    )
    rest = paragraph(f"and {counted(pack.hidden, 'segment')} more", "fine") if pack.hidden else ""
    segments = "".join(map(_segment, pack.segments))
    return f"<h3>Pack {pack.index:,}: {escape(uses)}</h3>{segments}{rest}"


def _segment(segment: ShownSegment) -> str:
    facts = segment.facts
    last = facts.first + facts.tokens - 1
    span = f"tokens {facts.first:,} … {last:,}" if facts.tokens else "ends where its trunk does"
    head = f"{segment.name} · {span} · {counted(facts.loss_tokens, 'target')}"
    body = "".join(
        _text(item) if isinstance(item, ShownText) else _medium(item) for item in segment.items
    )
    indent = f' style="margin-left:{min(segment.level, 12)}em"' if segment.level else ""
    return (
        f'<div class="segment"{indent}><p class="fine">{escape(head)}</p><div '
        f'class="words">{body}</div></div>'
    )


def _text(item: ShownText) -> str:
    # Isolated, so that a mark of direction in one text does not turn the page around.
    return (
        f"<mark><bdi>{escape(item.text)}</bdi></mark>"
        if item.is_target
        else f"<bdi>{escape(item.text)}</bdi>"
    )


def _medium(item: ShownMedium) -> str:
    facts = item.facts
    title = escape(facts.describe())
    size = f"{facts.size}, " if facts.size else ""
    note = f'<em class="lost">{escape(item.note)}</em>' if item.note else ""
    content = ""
    if item.thumbnail:
        data = b64encode(item.thumbnail).decode()
        content = f'<img src="data:image/jpeg;base64,{data}" alt="{title}" title="{title}">'
    elif item.peaks:
        bars = "".join(
            f'<rect x="{index}" y="{20 - 19 * peak:.1f}" width="0.7" '
            f'height="{max(0.6, 38 * peak):.1f}"/>'
            for index, peak in enumerate(item.peaks)
        )
        content = (
            f'<svg class="wave" viewBox="0 0 {len(item.peaks)} 40" preserveAspectRatio="none" '
            f'role="img" aria-label="{title}">{bars}</svg>'
        )
    # The color shows the kind; only the name is bold, without the quotation marks of the title.
    name = repr(facts.name)[1:-1] or facts.kind
    name = name if len(name) <= 48 else f"…{name[-40:]}"
    sentence = escape(f"{size}{counted(facts.length, 'token')}")
    return (
        '<span class="medium '
        f'{facts.kind}">{content}<small><b>{escape(name)}</b><br>{sentence}</small>{note}</span>'
    )
