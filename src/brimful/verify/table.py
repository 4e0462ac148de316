"""Table of a report: one line a finding; cause and way out below what failed."""

import textwrap
from collections.abc import Iterator

from brimful.verify.report import Finding, Status, VerifyReport

_WIDTH = 110
"""Characters of the longest line of cause and way out."""


def draw_table(report: VerifyReport) -> Iterator[str]:
    """Yield the lines of the table.

    >>> from brimful.verify import Finding, Status, VerifyReport
    >>> wrong = Finding("isolation", Status.FAIL, "sdpa", 0.46, 1e-5, cause="a cache", way_out="use_cache=False")
    >>> print("\\n".join(draw_table(VerifyReport("Qwen2", (Finding("labels", Status.PASS), wrong)))))
    Qwen2
    check       attention            result         measured    limit
    labels      -                    PASS
    isolation   sdpa                 FAIL            4.6e-01    1e-05
                cause: a cache
                way out: use_cache=False
    FAIL: isolation (sdpa)
    """
    yield report.subject
    yield f"{'check':<12}{'attention':<21}{'result':<14}{'measured':>9}{'limit':>9}"
    for finding in report.findings:
        yield from _lines(finding)
    yield report.verdict


def _lines(finding: Finding) -> Iterator[str]:
    """Yield the lines of one finding."""
    measured_text = "" if finding.measured is None else f"{finding.measured:.1e}"
    limit_text = "" if finding.limit is None else f"{finding.limit:.0e}"
    row = (
        f"{finding.check:<12}{finding.attention or '-':<21}{finding.status.value:<14}{measured_text:>9}{limit_text:>9}"
    )
    # A detail of what passed ends its line; what did not pass has more to say, and says it below.
    if finding.status is Status.PASS:
        yield f"{row}  {finding.detail}".rstrip()
        return
    yield row.rstrip()
    for title, text in (("", finding.detail), ("cause: ", finding.cause), ("way out: ", finding.way_out)):
        if text:
            yield from textwrap.wrap(f"{title}{text}", _WIDTH, initial_indent=" " * 12, subsequent_indent=" " * 14)
