"""A few packs as drawings: a strip of each, and its segments with their texts, targets and
media.
"""

from base64 import b64encode
from collections.abc import Sequence
from html import escape
from itertools import groupby

from brimful.base.wording import counted, percent, whole
from brimful.report.analysis.shown_packs import Segment, ShownMedium, ShownPack, ShownText
from brimful.report.html.markup import paragraph, section

_LEGEND = {
    "text": "text",
    "target": "targets of the loss",
    "image": "images",
    "video": "videos",
    "audio": "audio",
    "padding": "free",
}
"""Kinds of a strip, in words."""

_HEIGHT = 28
"""Height of a strip whose width is its number of columns."""


def shown_packs_section(packs: list[ShownPack]) -> str:
    """Return packs as they are; every name and text of the data is escaped."""
    kinds = {kind for pack in packs for kind in pack.strip}
    legend = "".join(
        f'<li><i class="part-{kind}"></i>{escape(words)}</li>'
        for kind, words in _LEGEND.items()
        if kind in kinds
    )
    words = (
        "The strip is the whole pack from its first token to its last, with a line between two "
        "segments. Below are its segments; targets of the loss are marked."
    )
    body = "".join(_pack(pack) for pack in packs)
    return section(
        "shown",
        "Some packs, as they are",
        paragraph(words),
        f'<ul class="legend">{legend}</ul>',
        f"<div>{body}</div>",
    )


def _pack(pack: ShownPack) -> str:
    uses = ", ".join(
        f"{whole(amount)} of {whole(capacity)} {name} ({percent(amount / capacity)})"
        for name, (amount, capacity) in pack.budgets.items()
    )
    rest = paragraph(f"and {counted(pack.hidden, 'segment')} more", "fine") if pack.hidden else ""
    segments = "".join(_segment(*segment) for segment in pack.segments)
    return f"<h3>Pack {pack.index:,}: {escape(uses)}</h3>{_strip(pack)}{segments}{rest}"


def _strip(pack: ShownPack) -> str:
    """Draw one rectangle for each run of columns of one kind, and a line at each boundary."""
    width = len(pack.strip)
    parts, x = [], 0
    for kind, run in groupby(pack.strip):
        length = len(list(run))
        parts.append(
            f'<rect class="part-{kind}" x="{x}" y="0" width="{length}" height="{_HEIGHT}"/>'
        )
        x += length
    lines = [
        f'<line class="boundary" x1="{share * width:.2f}" x2="{share * width:.2f}" y1="0" y2="{_HEIGHT}"/>'
        for share in pack.boundaries
    ]
    title = f"pack {pack.index:,}: {counted(pack.tokens, 'token')}"
    return (
        f'<svg class="strip" viewBox="0 0 {width} {_HEIGHT}" preserveAspectRatio="none" role="img" '
        f'aria-label="{escape(title)}">{"".join(parts)}{"".join(lines)}</svg>'
    )


def _segment(facts: Segment, parts: Sequence[ShownText | ShownMedium]) -> str:
    head = (
        f"sample {facts.sample_id:,} · tokens {facts.first:,} … {facts.first + facts.tokens - 1:,} "
        f"· {counted(facts.loss_tokens, 'target')}"
    )
    body = "".join(_text(part) if isinstance(part, ShownText) else _medium(part) for part in parts)
    return f'<div class="segment"><p class="fine">{escape(head)}</p><div class="words">{body}</div></div>'


def _text(part: ShownText) -> str:
    # Isolated, so that a mark of direction in one text does not turn the page around.
    return (
        f"<mark><bdi>{escape(part.text)}</bdi></mark>"
        if part.is_target
        else f"<bdi>{escape(part.text)}</bdi>"
    )


def _medium(part: ShownMedium) -> str:
    facts = part.facts
    title = escape(facts.describe())
    size = f"{facts.size}, " if facts.size else ""
    note = f'<em class="lost">{escape(part.note)}</em>' if part.note else ""
    content = ""
    if part.thumbnail:
        data = b64encode(part.thumbnail).decode()
        content = f'<img src="data:image/jpeg;base64,{data}" alt="{title}" title="{title}">'
    elif part.peaks:
        content = _wave(part.peaks, title)
    # The color shows the kind; only the name is bold, without the quotation marks of the title.
    name = repr(facts.name)[1:-1] or facts.kind
    name = name if len(name) <= 48 else f"…{name[-40:]}"
    words = escape(f"{size}{counted(facts.length, 'token')}")
    return f'<span class="medium {facts.kind}">{content}<small><b>{escape(name)}</b><br>{words}</small>{note}</span>'


def _wave(peaks: tuple[float, ...], title: str) -> str:
    """Draw a waveform as bars around its middle."""
    bars = "".join(
        f'<rect x="{number}" y="{20 - 19 * peak:.1f}" width="0.7" height="{max(0.6, 38 * peak):.1f}"/>'
        for number, peak in enumerate(peaks)
    )
    return (
        f'<svg class="wave" viewBox="0 0 {len(peaks)} 40" preserveAspectRatio="none" role="img" aria-label="{title}">'
        f"{bars}</svg>"
    )
