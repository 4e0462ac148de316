"""Report of ``doctor`` as one HTML page: nothing is loaded, nothing runs."""

import json
from html import escape
from importlib.resources import files

from brimful import __version__
from brimful.doctor.report import TOPICS, DoctorReport, Finding
from brimful.report.html.markup import paragraph, section

DATA_ID = "doctor-data"
"""Id of the element that holds the report as JSON, as ``brimful doctor --json`` prints it."""

_STYLE = """
ul.lines{list-style:none;padding:0}ul.lines li{display:grid;grid-template-columns:11em 6em 1fr;
gap:.3em 1em;padding:.35em 0;border-bottom:1px solid #8884}
ul.lines b{font-weight:600}ul.lines i{font-style:normal;opacity:.7}
article{margin:1em 0;padding:.2em 1em;border-left:4px solid #c33}article.suspect{border-color:#c80}
pre{white-space:pre-wrap;overflow-wrap:anywhere}
@media (max-width:40em){ul.lines li{grid-template-columns:1fr auto}ul.lines span{grid-column:1/-1}}
"""


def render_page(report: DoctorReport) -> str:
    """Return the page of a report; equal reports give equal pages.

    >>> from brimful.doctor.report import Evidence, Line
    >>> page = render_page(DoctorReport("<run>", (Line("packing", "on", Evidence.SEEN),)))
    >>> "<h1>&lt;run&gt;</h1>" in page, "NOT SHOWN" in page
    (True, True)
    """
    style = files("brimful.report.html").joinpath("page.css").read_text(encoding="utf-8")
    lines = "".join(
        f"<li><b>{escape(TOPICS[line.topic])}</b><i>{line.evidence.value}</i>"
        f'<span title="{escape(line.source)}">{escape(line.text)}</span></li>'
        for line in report.lines
    )
    parts = [section("findings", "Findings", *map(_article, report.findings))]
    parts.append(section("lines", "Line by line", f'<ul class="lines">{lines}</ul>'))
    if report.notes:
        notes = "".join(f"<pre>{escape(note)}</pre>" for note in report.notes)
        parts.append(section("notes", "What was read", notes))
    # Escapes of JSON itself: nothing in the text can end the element around it.
    data = json.dumps(report.as_dict(), ensure_ascii=False)
    for character in "&<>":
        data = data.replace(character, f"\\u{ord(character):04x}")
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; style-src '
        "'unsafe-inline'\">"
        f"<title>{escape(report.subject)} – brimful doctor</title>\n"
        f"<style>\n{style}{_STYLE}</style></head>\n<body><main>"
        f"<header><h1>{escape(report.subject)}</h1><p>{escape(report.verdict)}</p></header>\n"
        f"{''.join(parts if report.findings else parts[1:])}\n"
        f"<footer>brimful {__version__}. Known: by configuration and version; seen: in a batch; "
        "shown: by a probe in the job. No line says that something is right.</footer></main>\n"
        f'<script type="application/json" id="{DATA_ID}">{data}</script>\n</body></html>\n'
    )


def _article(finding: Finding) -> str:
    head = f"{finding.judgment.value.upper()}: {TOPICS[finding.topic]} ({finding.evidence.value})"
    parts = [f"<h3>{escape(head)}</h3>"]
    for title, text in finding.paragraphs():
        if title == "seen before":
            links = " ".join(
                f'<a href="{escape(link)}" rel="noreferrer">{escape(link)}</a>'
                for link in finding.threads
            )
            parts.append(f"<p>Seen before: {links}</p>")
        elif title == "change":
            parts.append(f"<p>Change:</p><pre>{escape(text)}</pre>")
        else:
            parts.append(paragraph(text[:1].upper() + text[1:]))
    return f'<article class="{finding.judgment.value}">{"".join(parts)}</article>'
