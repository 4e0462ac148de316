"""Describe lengths, plans, pack stores and single packs as lines."""

from dataclasses import asdict
from typing import Any

import numpy as np

from brimful.base.fingerprint import short
from brimful.base.ragged import offsets_of
from brimful.base.wording import counted, percent
from brimful.measure import LengthTable
from brimful.media import PlacedMedium
from brimful.mixtures.proportions import describe_mixture, sources_of_record
from brimful.plan import Plan
from brimful.report.analysis.plan_facts import Losses
from brimful.report.analysis.shown_packs import (
    Decode,
    MediumFacts,
    name_segments,
    samples_through,
    segments_of,
    split_at_media,
    texts_of,
)
from brimful.report.text.tree_lines import (
    branch_line,
    draw_tree,
    tree_heading,
)
from brimful.serve import PackStore
from brimful.store.shards import Pack
from brimful.store.summary import describe_sizes, fill_of
from brimful.trees.account import SharedTokens, tree_of_pack
from brimful.trees.pack_tree import PackTree, tree_of
from brimful.trees.prefixes import prefixes_of, sharing_of


def describe_lengths(table: LengthTable) -> list[str]:
    """Describe a length table.

    >>> describe_lengths(LengthTable.from_lengths([3, 5, 10]))[0]
    'lengths        3 samples, 18 tokens, ee6a191'
    """
    lines = [
        f"lengths        {counted(len(table), 'sample')}, {counted(table.total_tokens, 'token')}, "
        f"{short(table.fingerprint)}"
    ]
    for name, column in table.budgets.items():
        # Rejected samples have no length.
        values = column[table.tokens >= 0]
        if len(values):
            p5, p50, p95, p99 = np.percentile(
                values, [5, 50, 95, 99], method="inverted_cdf"
            ).tolist()
            spread = f"p5 {p5:,}, median {p50:,}, p95 {p95:,}, p99 {p99:,}"
            lines.append(
                f"{name:<15}mean {values.mean():,.1f}, shortest {values.min():,}, {spread}, "
                f"longest {values.max():,}"
            )
    if table.targets is not None:
        share = 100 * table.targets.total / max(1, table.total_tokens)
        no_target, unread = (
            table.account.no_target.most_common(),
            table.account.unread.most_common(),
        )
        lines.append(
            f"targets        {table.targets.total:,} ({share:.1f} % of the tokens) if nothing is "
            "cut"
        )
        lines += [
            f"without any    {counted(count, 'sample')}: {reason}" for reason, count in no_target
        ]
        if unread:
            names = ", ".join(
                f"{name} ({100 * count / max(1, len(table)):.0f} %)" for name, count in unread
            )
            lines.append(f"not read       columns {names} of the rows")
    if table.sharing is not None:
        prefixes = prefixes_of(table)
        sharing = sharing_of(prefixes, table.tokens)
        lines.append(
            f"shared         {counted(sharing.shares, 'sample')} of {len(table):,} begin as another "
            f"does, with {prefixes.least:,} tokens or more: {sharing.tree_tokens:,} tokens if "
            f"each is there once, {sharing.ratio:.2f} times fewer"
        )
    if table.provenance:
        lines.append(
            f"source         {table.provenance['source']}, "
            f"{short(table.provenance['source_fingerprint'])}"
        )
    if len(table.rejected_ids):
        lines.append(f"rejected       {counted(len(table.rejected_ids), 'malformed row')}")
        lines += [f"               {origin}: {reason}" for _, origin, reason in table.rejects[:5]]
    return lines


def describe_plan(plan: Plan) -> list[str]:
    """Describe packs, fill and bound, and the fate of every sample and token."""
    ledger, not_drawn = plan.ledger, ""
    if plan.settings.draw is not None:
        repeats = f"; {ledger.draws_repeated:,} packed again" if ledger.draws_repeated else ""
        not_drawn = f", {ledger.samples_not_drawn:,} left for later epochs{repeats}"
    samples, tokens = max(1, ledger.samples_in), max(1, ledger.tokens_in)
    shared = SharedTokens.of(plan)
    lines = [
        f"packs          {plan.num_packs:,} of {counted(plan.capacity, 'token')}, "
        f"{short(plan.fingerprint)}",
        f"fill           {fill_of(plan, shared)}",
        *(() if shared is None else shared.lines()),
        f"lower bound    {counted(plan.bound, 'pack')}; the plan has "
        f"{plan.num_packs - plan.bound:,} more",
    ]
    # Without this line a lower fill has no visible reason.
    if not plan.alignment.is_none and plan.num_packs:
        after_segments, at_row_ends = plan.padding
        share = (after_segments + at_row_ends) / (plan.num_packs * plan.capacity)
        lines.append(
            f"padding        {100 * share:.2f} %: {counted(after_segments, 'token')} after "
            "segments, "
            f"{at_row_ends:,} at the ends of rows, as aligned"
        )
    if plan.num_packs:
        fill = 100 * plan.pack_tokens / plan.capacity
        median = np.percentile(fill, 50, method="inverted_cdf")
        lines += [
            describe_sizes(plan),
            f"fill of a pack least {fill.min():.1f} %, median {median:.1f} %",
        ]
    lines += [
        f"samples        {ledger.samples_in:,} in: {ledger.samples_packed:,} packed, "
        f"{ledger.samples_dropped:,} dropped ({percent(ledger.samples_dropped / samples, 2)}), "
        f"{ledger.samples_rejected:,} rejected{not_drawn}",
        f"tokens         {ledger.tokens_in:,} in: {ledger.tokens_packed:,} packed, "
        f"{f'{ledger.tokens_shared:,} shared, ' if ledger.tokens_shared else ''}"
        f"{ledger.tokens_dropped:,} dropped ({percent(ledger.tokens_dropped / tokens, 2)}), "
        f"{ledger.tokens_truncated:,} truncated ({percent(ledger.tokens_truncated / tokens, 2)})",
        f"cut            {counted(ledger.samples_truncated, 'sample')} truncated, "
        f"{ledger.samples_split:,} split",
    ]
    if ledger.targets_in is not None:
        lines.append(
            f"targets        {ledger.targets_in:,} in: {ledger.targets_packed:,} packed, "
            f"{ledger.targets_dropped:,} dropped, {ledger.targets_cut:,} lost to cuts"
        )
        if ledger.samples_without_target:
            lines.append(
                f"without any    {ledger.samples_without_target:,} samples in the packs: they "
                "teach nothing, except as mismatches of KTO"
            )
    warning = Losses.of(plan).warning
    return lines + ([f"warning        {warning}"] if warning else []) + _record(plan)


_KEYS_WITH_A_LINE = (
    "capacity",
    "phases",
    "phase_reports",
    "dropped_by",
    "packs_below_min_fill",
    "groups",
    "mixture",
    "drawn",
)
"""Keys of a plan's record that are shown on lines of their own."""


def _record(plan: Plan) -> list[str]:
    """Describe the requested options, and their results."""
    outcome = plan.outcome
    pairs = (
        f"{key} {_phrase(value)}"
        for key, value in plan.record.items()
        if key not in _KEYS_WITH_A_LINE
    )
    lines = [f"settings       {', '.join(pairs)}"]
    if plan.settings.draw is not None:
        lines.append(
            f"mixture        {describe_mixture(outcome.drawn, plan.settings.draw.as_dict())}"
        )
        lines += [
            f"source         {source.describe()}" for source in sources_of_record(outcome.drawn)
        ]
    lines += [f"phase          {line}" for line in outcome.phase_reports]
    lines += [
        f"dropped for    {name}: {counted(count, 'sample')}"
        for name, count in outcome.dropped_by.items()
    ]
    if outcome.groups is not None:
        lines.append(f"groups         {short(outcome.groups)}, each contiguous in one pack")
    if outcome.packs_below_min_fill is not None:
        num_before, num_after = outcome.packs_below_min_fill
        lines.append(
            f"below min_fill {counted(num_before, 'pack')}, packed again; {num_after:,} remain, "
            "last in the plan"
        )
    return lines


def _phrase(value: object) -> str:
    """Format a setting: ``samples 16 and patches 4,096``."""
    if isinstance(value, dict):
        return " and ".join(f"{name} {limit:,}" for name, limit in value.items())
    return str(value)


_PLAN_LABELS = (
    *("samples ", "tokens ", "shared ", "not shared", "speed-up"),
    *("cut ", "targets ", "without any", "dropped for"),
)
"""Labels of the lines of a plan that describe its store too."""


def describe_store(packs: PackStore, plan: Plan | None = None) -> list[str]:
    """Describe a pack store, with the fate of its samples if the plan is given."""
    identity = packs.identity
    lines = [
        f"packs          {len(packs):,} of {counted(packs.capacity, 'token')} in "
        f"{counted(packs.num_shards, 'shard')}",
        f"fill           {100 * packs.fill_ratio:.2f} %, {counted(packs.num_tokens, 'token')}",
        f"labels         train on {identity.get('train_on')}",
        f"fingerprints   plan {short(identity['plan'])}, source {short(identity['source'])}, "
        f"encoder {short(identity['encoder'])}",
    ]
    if plan is not None:
        lines += [line for line in describe_plan(plan) if line.startswith(_PLAN_LABELS)]
    if not packs.alignment.is_none:
        lines.append(
            f"alignment      segments to {packs.alignment.segment}, rows to "
            f"{packs.alignment.total} tokens"
        )
    lines += packs.census.lines()
    # Path and fingerprint of the tokenizer are one line.
    notes = dict(packs.notes)
    notes.pop("media_root", None)
    fingerprint = notes.pop("tokenizer_fingerprint", None)
    if fingerprint is not None:
        notes["tokenizer"] = f"{notes.get('tokenizer') or 'given'}, {short(str(fingerprint))}"
    lines += [f"{name:<15}{value}" for name, value in notes.items()]
    return lines


_HEAD, _TAIL = 48, 24
"""Tokens that are shown of a long segment, at its beginning and at its end."""


def show_pack(
    pack: Pack, index: int, capacity: int, decode: Decode | None, full: bool = False
) -> list[str]:
    """Describe the segments of a pack, a tree as branches of its trunks; targets of the loss stand
    between ⟦ and ⟧.

    Args:
        pack: to show.
        index: its number, for the heading.
        capacity: of the plan.
        decode: tokens to text; None shows the boundaries alone.
        full: true shows whole texts instead of their beginnings and ends, and all branches.
    """
    if pack.sharing is not None:
        return _show_tree(pack, tree_of(pack), index, capacity, decode, full)
    share = 100 * len(pack) / capacity
    lines = [
        f"pack {index}: {len(pack):,} of {capacity:,} tokens ({share:.1f} %), {pack.num_segments} "
        f"segments, {pack.num_loss_tokens:,} loss tokens"
    ]
    for segment, media in segments_of(pack):
        start = f" from its token {segment.start:,}" if segment.start else ""
        last = segment.first + segment.tokens - 1
        lines.append(
            f"── tokens {segment.first:,} … {last:,} · sample {segment.sample_id}{start} · "
            f"{segment.tokens:,} tokens, {segment.loss_tokens:,} loss"
        )
        if decode is None:
            lines += [MediumFacts.of(item).describe() for item in media]
            continue
        # Each medium is in the place of its tokens, which are one token repeated.
        lines.append(
            "".join(
                MediumFacts.of(item).describe()
                if isinstance(item, PlacedMedium)
                else _text(pack, item, decode, full)
                for item in split_at_media(segment, media)
            )
        )
    return lines


def _show_tree(
    pack: Pack, tree: PackTree, index: int, capacity: int, decode: Decode | None, full: bool
) -> list[str]:
    """Describe a pack of trees; ``show_pack`` explains the arguments."""
    segments, names = list(segments_of(pack)), name_segments(tree, pack.sample_ids)

    def lines_of(index: int) -> list[str]:
        facts, media = segments[index]
        line = branch_line(names[index], facts.first, facts.start, facts.tokens)
        head = f"{line}, {facts.loss_tokens:,} loss" if facts.tokens else line
        if decode is None:
            return [head, *(MediumFacts.of(item).describe() for item in media)]
        lines = (
            MediumFacts.of(item).describe()
            if isinstance(item, PlacedMedium)
            else _text(pack, item, decode, True)
            if full
            else _beginning(pack, item, decode)
            for item in split_at_media(facts, media)
        )
        return [head, *"".join(lines).splitlines()]

    lengths = np.diff(pack.cu_seqlens)
    heading = tree_heading(tree, pack.starts + lengths, lengths, index, capacity)
    targets = f"{pack.num_loss_tokens:,} loss tokens"
    return [f"{heading}, {targets}", *draw_tree(tree, lengths, lines_of, full=full)]


def show_planned_pack(plan: Plan, index: int, full: bool = False) -> list[str]:
    """Describe the segments of a pack of a plan, which has no text; ``show_pack`` explains
    ``full``.
    """
    segments = plan.pack(index)
    if plan.sharing is None:
        total = sum(segment.length for segment in segments)
        return [
            f"pack {index}: {total:,} of {plan.capacity:,} tokens, {len(segments)} segments",
            *(
                f"  sample {s.sample_id:>10}  tokens {s.start:,} … {s.start + s.length - 1:,}"
                for s in segments
            ),
        ]
    tree = tree_of_pack(plan, index)
    sample_ids, starts, lengths = np.array(segments).T
    names, firsts = name_segments(tree, sample_ids), offsets_of(lengths).tolist()

    def lines_of(index: int) -> list[str]:
        _, depth, num_tokens = segments[index]
        return [branch_line(names[index], firsts[index], depth, num_tokens)]

    heading = tree_heading(tree, starts + lengths, lengths, index, plan.capacity)
    return [heading, *draw_tree(tree, lengths, lines_of, full=full)]


def planned_pack_as_dict(plan: Plan, index: int) -> dict[str, Any]:
    """Return a pack of a plan for JSON."""
    segments = plan.pack(index)
    branches = (
        [{}] * len(segments) if plan.sharing is None else _branches(tree_of_pack(plan, index))
    )
    return {
        "kind": "pack",
        "pack": index,
        "tokens": sum(segment.length for segment in segments),
        "capacity": plan.capacity,
        "segments": [
            {"sample_id": s.sample_id, "start": s.start, "tokens": s.length, **branch}
            for s, branch in zip(segments, branches, strict=True)
        ],
    }


def _branches(tree: PackTree) -> list[dict[str, Any]]:
    """Return for JSON the parent of each segment, whether a sample ends with it, and how many pass
    through it.
    """
    ends = set(tree.ends.tolist())
    return [
        {"parent": parent, "ends": segment in ends, "samples": count}
        for segment, (parent, count) in enumerate(
            zip(tree.parents.tolist(), samples_through(tree).tolist(), strict=True)
        )
    ]


def pack_as_dict(pack: Pack, index: int, capacity: int, decode: Decode | None) -> dict[str, Any]:
    """Return a pack for JSON: its segments, with their texts if a tokenizer is given."""
    segments = []
    branches = [{}] * pack.num_segments if pack.sharing is None else _branches(tree_of(pack))
    for (facts, media), branch in zip(segments_of(pack), branches, strict=True):
        segment = {**asdict(facts), **branch}
        if decode is not None:
            segment["text"] = decode(pack.input_ids[facts.first : facts.first + facts.tokens])
        if media:
            segment["media"] = [asdict(MediumFacts.of(item)) for item in media]
        segments.append(segment)
    return {
        "kind": "pack",
        "pack": index,
        "tokens": len(pack),
        "capacity": capacity,
        "segments": segments,
    }


def _beginning(pack: Pack, tokens: slice, decode: Decode) -> str:
    """Return the beginning of the text of some tokens in one line, with marks around targets."""
    num_hidden = tokens.stop - tokens.start - _TAIL
    text = _text(pack, slice(tokens.start, min(tokens.stop, tokens.start + _TAIL)), decode, True)
    return text.replace("\n", "↵") + (f" … {num_hidden:,} tokens" if num_hidden > 0 else "")


def _text(pack: Pack, tokens: slice, decode: Decode, full: bool) -> str:
    """Return the text of some tokens with marks around targets, without the middle of a long
    one.
    """

    def marked(start: int, end: int) -> str:
        texts = texts_of(pack, slice(start, end), decode)
        return "".join(f"⟦{one.text}⟧" if one.is_target else one.text for one in texts)

    num_hidden = tokens.stop - tokens.start - _HEAD - _TAIL
    if full or num_hidden <= 0:
        return marked(tokens.start, tokens.stop)
    head, tail = (
        marked(tokens.start, tokens.start + _HEAD),
        marked(tokens.stop - _TAIL, tokens.stop),
    )
    return f"{head}\n   … {num_hidden:,} tokens …\n{tail}"
