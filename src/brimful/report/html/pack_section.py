"""A few packs as they are: their segments with their texts, targets and media."""

from base64 import b64encode
from collections.abc import Sequence
from html import escape

from brimful.base.wording import counted, percent, whole
from brimful.report.analysis.shown_packs import Segment, ShownMedium, ShownPack, ShownText
from brimful.report.html.markup import paragraph, section


def shown_packs_section(packs: list[ShownPack]) -> str:
    """Return packs as they are; every name and text of the data is escaped."""
    words = "Segments of a few packs, with their texts and media; targets of the loss are marked."
    return section(
        "shown",
        "Some packs, as they are",
        paragraph(words),
        f"<div>{''.join(map(_pack, packs))}</div>",
    )


def _pack(pack: ShownPack) -> str:
    uses = ", ".join(
        f"{whole(amount)} of {whole(capacity)} {name} ({percent(amount / capacity)})"
        for name, (amount, capacity) in pack.budgets.items()
    )
    rest = paragraph(f"and {counted(pack.hidden, 'segment')} more", "fine") if pack.hidden else ""
    segments = "".join(_segment(*segment) for segment in pack.segments)
    return f"<h3>Pack {pack.index:,}: {escape(uses)}</h3>{segments}{rest}"


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
        bars = "".join(
            f'<rect x="{number}" y="{20 - 19 * peak:.1f}" width="0.7" height="{max(0.6, 38 * peak):.1f}"/>'
            for number, peak in enumerate(part.peaks)
        )
        content = (
            f'<svg class="wave" viewBox="0 0 {len(part.peaks)} 40" preserveAspectRatio="none" '
            f'role="img" aria-label="{title}">{bars}</svg>'
        )
    # The color shows the kind; only the name is bold, without the quotation marks of the title.
    name = repr(facts.name)[1:-1] or facts.kind
    name = name if len(name) <= 48 else f"…{name[-40:]}"
    words = escape(f"{size}{counted(facts.length, 'token')}")
    return f'<span class="medium {facts.kind}">{content}<small><b>{escape(name)}</b><br>{words}</small>{note}</span>'
