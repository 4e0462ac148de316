"""The report as one page: nothing is loaded, nothing runs, and its numbers are in it as JSON."""

import json
from html import escape
from importlib.resources import files
from typing import Any

from brimful import __version__
from brimful.base.fingerprint import short
from brimful.base.wording import counted
from brimful.report.analysis.facts import Facts
from brimful.report.html.sections import sections_of

DATA_ID = "report-data"
"""Id of the element that holds the numbers as JSON, as ``brimful report --json`` prints them."""


def render_page(facts: Facts) -> str:
    """Return one HTML page. Equal facts give equal pages: it contains no date.

    The page forbids itself to load or run anything (``Content-Security-Policy``), so it can be mailed, kept with a
    checkpoint, and opened without a network.

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
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'"
        f'{images}">'
        f"<title>{title} – brimful report</title>\n<style>\n{style}</style></head>\n<body><main>"
        f"<header><h1>{title}</h1><p>{escape(_subtitle(facts))}</p></header>\n"
        f"{body}\n<footer>{escape(_footer(facts))}</footer></main>\n"
        f'<script type="application/json" id="{DATA_ID}">{_as_json(facts.as_dict())}</script>\n</body></html>\n'
    )


def _as_json(value: Any) -> str:
    """Return JSON in which nothing can end the element around it."""
    # Escapes of JSON itself: the text stays valid JSON for a reader of the element.
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _subtitle(facts: Facts) -> str:
    lengths = facts.length_facts
    if facts.plan_facts is not None:
        plan = facts.plan_facts.plan
        settings = plan.settings
        return (
            f"{counted(plan.ledger.samples_packed, 'sample')} in {counted(plan.num_packs, 'pack')} of "
            f"{counted(plan.capacity, 'token')}, {settings.algorithm}, overflow {settings.overflow_policy.value}, "
            f"seed {settings.seed}"
        )
    if lengths is None:
        return "no samples"
    return f"{counted(lengths.number, 'sample')}, {counted(lengths.tokens, 'token')}"


def _footer(facts: Facts) -> str:
    names = [f"brimful {__version__}"]
    if facts.length_facts is not None and facts.length_facts.fingerprint:
        names.append(f"lengths {facts.length_facts.fingerprint}")
    if facts.plan is not None:
        names.append(f"plan {short(facts.plan.fingerprint)}")
    return ", ".join(names) + f". The numbers of this page are in it as JSON, in the element {DATA_ID}."
