"""The report as one page: nothing is loaded, nothing runs, and its numbers are in it as JSON."""

from __future__ import annotations

import json
from html import escape
from importlib.resources import files
from typing import Any

from brimful import __version__
from brimful.messages import counted
from brimful.report.charted import capacity_section, lengths_section, packs_section, work_section
from brimful.report.facts import Facts
from brimful.report.sections import advice_section, ledger_section, shares_section, summary_tiles

__all__ = ["DATA_ID", "render_page"]

DATA_ID = "report-data"
"""Id of the element that holds the numbers as JSON: what ``brimful report --json`` prints."""


def render_page(facts: Facts) -> str:
    """One HTML page. Equal facts give equal pages: there is no date in it.

    The page forbids itself to load or run anything (``Content-Security-Policy``), so it can be mailed, kept with a
    checkpoint, and opened without a network.

    >>> from brimful.measure import LengthTable
    >>> from brimful.report.facts import Run, gather_facts
    >>> page = render_page(gather_facts("<b>", table=LengthTable.from_lengths([3, 5]), plan=None, run=Run()))
    >>> "<h1>&lt;b&gt;</h1>" in page
    True
    """
    numbers = facts.as_dict()
    plan, capacity = numbers["plan"], None if facts.plan is None else facts.plan.capacity
    parts = [summary_tiles(numbers)]
    if facts.advice is not None:
        parts.append(advice_section(facts.advice, facts.run.model))
    if numbers["lengths"] is not None:
        parts.append(lengths_section(numbers["lengths"], capacity))
    if plan is not None and "fill" in plan:
        parts.append(packs_section(plan))
    if facts.sweep:
        parts.append(capacity_section(facts.sweep, facts.run.packs_per_step, capacity))
    if plan is not None:
        parts.append(ledger_section(plan, numbers["rejects"], numbers["account"]))
    if facts.shares:
        parts.append(shares_section(facts.shares, packed=plan is not None))
    if facts.work is not None:
        parts.append(work_section(facts.work, numbers["run"]))
    style = files("brimful.report").joinpath("page.css").read_text(encoding="utf-8")
    title, body = escape(facts.title), "\n".join(parts)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        f"<title>{title} – brimful report</title>\n<style>\n{style}</style></head>\n<body><main>"
        f"<header><h1>{title}</h1><p>{escape(_subtitle(numbers))}</p></header>\n"
        f"{body}\n<footer>{escape(_footer(numbers))}</footer></main>\n"
        f'<script type="application/json" id="{DATA_ID}">{_as_json(numbers)}</script>\n</body></html>\n'
    )


def _as_json(value: Any) -> str:
    """JSON in which nothing can end the element around it."""
    text = json.dumps(value, ensure_ascii=False)
    return text.replace("&", "\\u0026").replace("<", "\\u003c").replace(">", "\\u003e")


def _subtitle(numbers: dict[str, Any]) -> str:
    plan, lengths = numbers["plan"], numbers["lengths"]
    if plan is not None:
        settings = plan["settings"]
        return (
            f"{counted(plan['ledger']['samples_packed'], 'sample')} in {counted(plan['num_packs'], 'pack')} of "
            f"{counted(plan['capacity'], 'token')}, "
            f"{settings.get('algorithm')}, overflow {settings.get('overflow')}, seed {settings.get('seed')}"
        )
    if not lengths:
        return "no samples"
    return f"{counted(lengths['number'], 'sample')}, {counted(lengths['tokens'], 'token')}"


def _footer(numbers: dict[str, Any]) -> str:
    names = [f"brimful {__version__}"]
    for part, name in (("lengths", "lengths"), ("plan", "plan")):
        if numbers[part] is not None and numbers[part]["fingerprint"]:
            names.append(f"{name} {numbers[part]['fingerprint']}")
    return ", ".join(names) + f". The numbers of this page are in it as JSON, in the element {DATA_ID}."
