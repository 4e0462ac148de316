"""The parts of the page that are tables and words: summary, advice, ledger, sources."""

from __future__ import annotations

from html import escape
from typing import Any

from brimful.messages import counted
from brimful.plan.ledger import MUCH_LOST
from brimful.report.advisor import Advice, Choice
from brimful.report.markup import (
    Cell,
    Tile,
    loss,
    paragraph,
    percent,
    section,
    share_bar,
    table,
    tiles,
    warning,
    whole,
)
from brimful.report.notes import setting
from brimful.report.shares import SourceShare

__all__ = ["advice_section", "ledger_section", "shares_section", "summary_tiles"]


def summary_tiles(facts: dict[str, Any]) -> str:
    """The numbers to remember."""
    lengths, plan, advice = facts["lengths"], facts["plan"], facts["advice"]
    found = []
    if plan is not None:
        found += [
            Tile(
                "fill",
                percent(plan["fill_ratio"], 2),
                f"of {whole(plan['num_packs'])} × {counted(plan['capacity'], 'token')}",
            ),
            Tile("packs", whole(plan["num_packs"]), f"lower bound {whole(plan['lower_bound'])}"),
        ]
        if "samples_per_pack" in plan:
            sizes = plan["samples_per_pack"]
            found.append(
                Tile(
                    "samples a pack",
                    f"{sizes['mean']:,.1f}",
                    f"median {whole(sizes['median'])}, most {whole(sizes['most'])}",
                )
            )
        lost = plan["lost"]
        remarks = [f"{counted(lost['samples'], 'sample')} ({percent(lost['samples_ratio'], 2)}) dropped"]
        if lost["cut"]:
            cut = f"{counted(lost['cut'], 'sample')} cut"
            remarks = [*remarks, cut] if lost["samples"] else [cut]
        found.append(
            Tile(
                "tokens lost",
                percent(lost["tokens_ratio"], 2),
                ", ".join(remarks),
                much_lost=lost["warning"] is not None,
            )
        )
    elif lengths is not None:
        found += [
            Tile("samples", whole(lengths["number"]), counted(lengths["tokens"], "token")),
            Tile("median", whole(lengths["median"]), "tokens a sample"),
            Tile("longest", whole(lengths["longest"]), "tokens"),
        ]
    if advice is not None:
        packed = advice["packed"]
        samples = f"{counted(round(packed['samples']), 'sample')} a step"
        found.append(Tile("steps an epoch", whole(packed["steps_per_epoch"]), samples))
    told = plan["lost"]["warning"] if plan is not None else None
    return tiles(found) + (warning(f"{told}.") if told else "")


def advice_section(advice: Advice, model: str) -> str:
    """The unpacked run beside the packed one, the choices, and the notes."""
    best = advice.choices[advice.recommended]
    columns: list[tuple[str, Any]] = [
        ("rows a step", lambda step, _: whole(step.rows)),
        ("samples a step", lambda step, _: whole(step.samples)),
        ("tokens a step", lambda step, _: whole(step.tokens)),
        ("with padding", lambda _, padded: whole(padded)),
    ]
    if advice.unpacked.loss_tokens is not None:
        label = "loss tokens, at most" if advice.loss_tokens_are_most else "loss tokens a step"
        columns.append((label, lambda step, _: whole(step.loss_tokens)))
    columns.append(("steps an epoch", lambda step, _: whole(step.steps_per_epoch)))
    runs = [
        ("unpacked, padded to the longest", advice.unpacked, advice.padded_to_longest.step_tokens),
        (f"unpacked, padded to {advice.capacity:,}", advice.unpacked, advice.padded_to_capacity.step_tokens),
        ("packed, nothing else changed", advice.packed, advice.positions_per_token * advice.packed.tokens),
    ]
    if not advice.nothing_to_set:
        runs.append((f"packed, {setting(advice, best)}", best.step, advice.positions_per_token * best.step.tokens))
    rows = [[name, *(show(step, padded) for _, show in columns)] for name, step, padded in runs]
    forward = (
        f"micro-batch {advice.micro_batch_size:,}"
        if advice.packs_per_micro_batch == advice.micro_batch_size
        else f"micro-batch {advice.micro_batch_size:,} unpacked and {advice.packs_per_micro_batch:,} packed"
    )
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
        table(["run", *(name for name, _ in columns)], rows, strong=len(rows) - 1),
        f"<h3>What you can set</h3>{_choices(advice)}",
        f'<dl class="notes">{notes}</dl>',
        paragraph(
            f"Arithmetic is that of {model}, by its cost model; kernels and networks have their own limits.", "fine"
        ),
    )


def _choices(advice: Advice) -> str:
    heads = ["packs a forward × accumulation", "samples a step", "ratio", "steps an epoch", "SGD", "Adam"]
    if advice.warmup_steps is not None:
        heads.append("warm-up steps")
    rows = [_choice(choice, advice) for choice in advice.choices]
    rate = "learning rate" if advice.learning_rate is not None else "factor of the learning rate"
    read = paragraph(
        f"SGD and Adam: the {rate} by linear scaling and by square root scaling. At a ratio near 1 keep the old one.",
        "fine",
    )
    return table(heads, rows, strong=advice.recommended) + read


def _choice(choice: Choice, advice: Advice) -> list[Cell]:
    why = ", ".join(["as set" if said == "keeps settings" else said for said in choice.merits])
    rate = advice.learning_rate
    linear, root = choice.linear_lr_ratio, choice.sqrt_lr_ratio
    row: list[Cell] = [
        (
            f"{choice.packs_per_micro_batch:,} × {choice.gradient_accumulation_steps:,}",
            f" <small>{escape(why)}</small>" if why else "",
        ),
        whole(choice.step.samples),
        f"{choice.batch_ratio:.2f}",
        whole(choice.step.steps_per_epoch),
        f"× {linear:.2f}" if rate is None else f"{rate * linear:.3g}",
        f"× {root:.2f}" if rate is None else f"{rate * root:.3g}",
    ]
    if choice.warmup_steps is not None:
        row.append(whole(choice.warmup_steps))
    return row


def _why_dropped(plan: dict[str, Any], longer: str) -> str:
    if not plan["ledger"]["samples_dropped"]:
        return "none was"
    without = plan["settings"].get("dropped_by", {}).get("no_target", 0)
    reasons = [longer] if plan["ledger"]["samples_dropped"] > without else []
    return "; ".join([*reasons, *([f"{whole(without)} without a target of the loss"] if without else [])])


def _targets(ledger: dict[str, Any], account: dict[str, Any]) -> list[str]:
    """Targets of the loss, samples without any by reason, and columns of the rows that nobody read."""
    parts = []
    if "targets_in" in ledger:
        everything = max(1, ledger["targets_in"])
        lost = (ledger["targets_dropped"] + ledger["targets_cut"]) / everything
        share = percent(ledger["targets_in"] / max(1, ledger["tokens_in"]), 1)
        text = (
            f"Targets of the loss: {whole(ledger['targets_in'])} in, {share} of the tokens = "
            f"{whole(ledger['targets_packed'])} packed + {whole(ledger['targets_dropped'])} dropped + "
            f"{whole(ledger['targets_cut'])} cut off."
        )
        parts.append(paragraph(text))
        if lost >= MUCH_LOST:
            parts.append(warning(f"{percent(lost, 2)} of the targets are in no pack."))
        if ledger["samples_without_target"]:
            parts.append(
                warning(
                    f"{counted(ledger['samples_without_target'], 'sample')} in the packs have no target: they teach nothing."
                )
            )
    without = account.get("no_target", {})
    if without:
        listed: list[list[Cell]] = [[whole(count), reason] for reason, count in without.items()]
        parts += ["<h3>Samples without a target of their own</h3>", table(["samples", "why"], listed)]
    unread = account.get("unread", {})
    if unread:
        samples = max(1, ledger["samples_in"])
        shown = ", ".join(f"{name} ({percent(count / samples, 0)})" for name, count in unread.items())
        parts.append(
            paragraph(
                f"Columns of the rows that nobody read, with the share of samples that have them: {shown}.", "fine"
            )
        )
    return parts


def ledger_section(plan: dict[str, Any], rejects: list[Any], account: dict[str, Any]) -> str:
    """Where every sample, every token and every target of the loss went, and why."""
    ledger, capacity, policy = plan["ledger"], plan["capacity"], plan["settings"].get("overflow")
    samples, tokens = max(1, ledger["samples_in"]), max(1, ledger["tokens_in"])
    longer = f"longer than {counted(capacity, 'token')}, overflow policy {policy}"

    def row(name: str, why: str, number: int, amount: int | None, lost: bool = False) -> list[Cell]:
        shares = [whole(number), percent(number / samples, 2)]
        if amount is None:
            return [name, *shares, "–", "–", why]
        return [name, *shares, whole(amount), loss(amount / tokens, much=lost and amount / tokens >= MUCH_LOST), why]

    rows = [
        row("in", "", ledger["samples_in"], ledger["tokens_in"]),
        row("packed", "", ledger["samples_packed"], ledger["tokens_packed"]),
        row("dropped", _why_dropped(plan, longer), ledger["samples_dropped"], ledger["tokens_dropped"], lost=True),
        row("rejected", "could not be read or encoded" if ledger["samples_rejected"] else "none was", ledger["samples_rejected"], None),
        row("truncated, of those packed", longer if ledger["samples_truncated"] else "none was", ledger["samples_truncated"], ledger["tokens_truncated"], lost=True),
        row("split, of those packed", longer if ledger["samples_split"] else "none was", ledger["samples_split"], 0),
    ]  # fmt: skip
    parts = [table(["", "samples", "of all", "tokens", "of all", "why"], rows)]
    parts.append(
        paragraph(
            "Samples: in = packed + dropped + rejected. Tokens: in = packed + dropped + truncated. A rejected sample has "
            "no length. Tokens of split samples are all kept.",
            "fine",
        )
    )
    parts += _targets(ledger, account)
    behind, at_ends = plan["padding"]["behind_segments"], plan["padding"]["at_ends_of_rows"]
    if behind or at_ends:
        share = (behind + at_ends) / (plan["num_packs"] * capacity)
        parts.append(
            paragraph(
                f"Alignment adds {counted(behind, 'token')} of padding behind segments and {whole(at_ends)} at the ends of rows, "
                f"{percent(share, 2)} of the packs: that much lower is the fill.",
                "fine",
            )
        )
    if rejects:
        listed = [[str(where), f"sample {sample_id}", str(reason)] for sample_id, where, reason in rejects]
        parts += ["<h3>Rejected rows</h3>", table(["where", "which", "why"], listed)]
        more = ledger["samples_rejected"] - len(rejects)
        if more > 0:
            parts.append(paragraph(f"and {more:,} more", "fine"))
    return section("ledger", "Where everything went", *parts)


def shares_section(shares: list[SourceShare], packed: bool) -> str:
    """What share each source has, before packing and after."""
    totals = [
        max(1, sum(getattr(share, name) for share in shares))
        for name in ("samples", "samples_packed", "tokens", "tokens_packed")
    ]
    rows: list[list[Cell]] = []
    for share in shares:
        ratios = [
            count / total
            for count, total in zip(
                (share.samples, share.samples_packed, share.tokens, share.tokens_packed), totals, strict=True
            )
        ]
        row: list[Cell] = [share.name, whole(share.samples), (percent(ratios[0]), share_bar(ratios[0], "one"))]
        if packed:
            row.append((percent(ratios[1]), share_bar(ratios[1], "one")))
        row += [whole(share.tokens), (percent(ratios[2]), share_bar(ratios[2], "two"))]
        if packed:
            row.append((percent(ratios[3]), share_bar(ratios[3], "two")))
            gone = (share.tokens - share.tokens_packed) / max(1, share.tokens)
            row.append(loss(gone, much=gone >= MUCH_LOST))
        rows.append(row)
    heads = ["source", "samples", "of all"]
    heads += ["of those packed"] if packed else []
    heads += ["tokens", "of all"]
    heads += ["of those packed", "tokens lost"] if packed else []
    words = (
        "Share of each source before packing and in the packs: where they differ, dropping and cutting changed the mix."
    )
    return section("sources", "Sources", paragraph(words), table(heads, rows))
