"""Report of ``verify_packing``: one finding for each check and attention implementation."""

import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any, NamedTuple

from brimful.base.wording import counted

CHECKS = (
    "untouched",  # the collator does not modify the samples it was given
    "complete",  # every token of every sample is in the batch once
    "labels",  # every target is predicted by the token before it, and no other sample is predicted
    "positions",  # positions start again with every sample
    "media",  # every medium is present once, with its own features, in the order of its tokens
    "boundaries",  # cu_seqlens and seq_idx say exactly where samples begin and end
    "padding",  # padding has no label, is not many tiny samples, and its tokens move nothing
    "attention",  # the implementation runs with this model and this batch
    "isolation",  # other tokens in one sample do not move the logits of another
    "training",  # isolation holds in training mode too
    "logits",  # a sample has the logits that it has alone
    "loss",  # the loss is the mean over all targets, as one by one
    "gradients",  # the gradients equal the samples' gradients one by one
    "weights",  # micro-batches of different target counts add up to the mean over all targets
    "passes",  # of trees: log-probabilities without gradients equal the training pass
    "columns",  # values, weights and fill of every token lie where the token is
    "split",  # every rank holds its tokens, with their own targets, positions and columns
    "gathering",  # parts of all ranks form the row again
    "parallel",  # logits and loss of the ranks equal the whole row's
    "restoring",  # every sample gets the values of its own tokens back, in the order of arrival
)
"""Every check, in the order of the report."""

_WIDTH = 110
"""Characters of the longest line of cause and way out in the table."""


class Status(str, Enum):
    """Result of a check."""

    PASS = "PASS"
    """Shown to hold."""
    FAIL = "FAIL"
    """Shown not to hold: training with this would be silently wrong."""
    NOT_SUPPORTED = "NOT SUPPORTED"
    """Could not be run here; the finding gives the reason, and the nearest setting that works."""


class Diagnosis(NamedTuple):
    """Likely cause of a failure, and the change to make."""

    cause: str
    way_out: str


@dataclass(frozen=True, slots=True)
class CheckResult:
    """One line of the report.

    Attributes:
        check: one of ``CHECKS``.
        attention: the attention implementation; empty if none is involved.
        status: result of the check.
        measured: largest difference, relative to the largest value (at least 1); None if nothing is
            measured.
        limit: largest ``measured`` that passes.
        detail: the numbers in words.
        cause: the likely cause of a failure.
        way_out: the change to make.
    """

    check: str
    status: Status
    attention: str = ""
    measured: float | None = None
    limit: float | None = None
    detail: str = ""
    cause: str = ""
    way_out: str = ""

    def __post_init__(self) -> None:
        assert self.check in CHECKS, self.check

    @property
    def passed(self) -> bool:
        """True if the check was shown to hold."""
        return self.status is Status.PASS

    @property
    def failed(self) -> bool:
        """True if the check was shown not to hold."""
        return self.status is Status.FAIL

    def lines(self) -> Iterator[str]:
        """Yield the lines of this finding in the table."""
        measured_text = "" if self.measured is None else f"{self.measured:.1e}"
        limit_text = "" if self.limit is None else f"{self.limit:.0e}"
        row = f"{self.check:<12}{self.attention or '-':<21}{self.status.value:<14}{measured_text:>9}{limit_text:>9}"
        # The detail of a passed check ends its line; the others continue below.
        if self.passed:
            yield f"{row}  {self.detail}".rstrip()
            return
        yield row.rstrip()
        for title, text in (
            ("", self.detail),
            ("cause: ", self.cause),
            ("way out: ", self.way_out),
        ):
            if text:
                yield from textwrap.wrap(
                    f"{title}{text}", _WIDTH, initial_indent=" " * 12, subsequent_indent=" " * 14
                )


def passed(check: str, detail: str = "") -> CheckResult:
    """Return the finding of a check that passes without a measured size."""
    return CheckResult(check, Status.PASS, detail=detail)


def failed(check: str, detail: str, cause: str, way_out: str) -> CheckResult:
    """Return the finding of a check that fails without a measured size."""
    return CheckResult(check, Status.FAIL, detail=detail, cause=cause, way_out=way_out)


def not_supported(check: str, detail: str, way_out: str = "") -> CheckResult:
    """Return the finding of a check that cannot be run here, or can show nothing."""
    return CheckResult(check, Status.NOT_SUPPORTED, detail=detail, way_out=way_out)


def compared(
    check: str,
    size: float,
    limit: float,
    *,
    passed: str = "",
    failed: str,
    diagnosis: Iterable[str] = (),
) -> CheckResult:
    """Return a finding that passes if the measured size is within its limit.

    Args:
        check: one of ``CHECKS``.
        size: relative difference that was measured.
        limit: largest size that passes.
        passed, failed: detail of the finding in either case.
        diagnosis: cause and way out of a failure.
    """
    if size <= limit:
        return CheckResult(check, Status.PASS, "", size, limit, passed)
    return CheckResult(check, Status.FAIL, "", size, limit, failed, *diagnosis)


def joined(*remarks: str) -> str:
    """Join the remarks that are not empty by semicolons."""
    return "; ".join(filter(None, remarks))


@dataclass(frozen=True)
class VerifyReport:
    """Findings of all checks.

    Attributes:
        subject: model, collator and data in one line.
        findings: in the order of ``CHECKS``, one for each attention implementation if one is
            involved.
    """

    subject: str
    findings: tuple[CheckResult, ...]

    @property
    def failures(self) -> tuple[CheckResult, ...]:
        """Findings of the checks that failed."""
        return tuple(finding for finding in self.findings if finding.failed)

    @property
    def proven(self) -> bool:
        """True if isolation was shown with at least one attention implementation."""
        return bool(self._passed("isolation"))

    @property
    def ok(self) -> bool:
        """True if nothing failed and isolation was shown at least once: a refusal alone proves
        nothing.
        """
        return not self.failures and self.proven

    @property
    def verdict(self) -> str:
        """One line: the first failures, or what was shown."""
        if failures := self.failures:
            names = [
                f"{finding.check} ({finding.attention})" if finding.attention else finding.check
                for finding in failures
            ]
            return f"FAIL: {', '.join(names)}"
        return self.success()

    def success(self) -> str:
        """Return the verdict if nothing failed."""
        attentions = self._passed("isolation")
        if not attentions:
            reason = next(
                (item.detail for item in self.findings if item.status is Status.NOT_SUPPORTED), ""
            )
            return f"NOT PROVEN: isolation was shown with no attention implementation; {reason}"
        # Samples can be apart in a batch whose loss was not compared: that does not prove that
        # packing is right.
        if not self._passed("loss"):
            reason = next(
                (
                    item.detail
                    for item in self.findings
                    if item.check in ("loss", "labels") and item.detail
                ),
                "",
            )
            return (
                f"PASS: samples are apart with {', '.join(attentions)}; LOSS NOT CHECKED: {reason}"
            )
        eval_only = [name for name in attentions if name not in self._passed("training")]
        remark = (
            f"; in training mode this was not shown with {', '.join(eval_only)}"
            if eval_only
            else ""
        )
        return f"PASS: packing is right with {', '.join(attentions)}{remark}"

    def _passed(self, check: str) -> list[str]:
        """Return the attention implementations with which a check passed."""
        return [
            finding.attention
            for finding in self.findings
            if (finding.check, finding.status) == (check, Status.PASS)
        ]

    def as_dict(self) -> dict[str, Any]:
        """Return plain strings and numbers, for JSON."""
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "subject": self.subject,
            "findings": [asdict(finding) for finding in self.findings],
        }

    def __repr__(self) -> str:
        return f"VerifyReport({counted(len(self.findings), 'finding')}, {self.verdict})"

    def __str__(self) -> str:
        """Return the table: one line a finding; cause and way out below each failure.

        >>> wrong = CheckResult("isolation", Status.FAIL, "sdpa", 0.46, 1e-5, cause="a cache", way_out="use_cache=False")
        >>> print(VerifyReport("Qwen2", (CheckResult("labels", Status.PASS), wrong)))
        Qwen2
        check       attention            result         measured    limit
        labels      -                    PASS
        isolation   sdpa                 FAIL            4.6e-01    1e-05
                    cause: a cache
                    way out: use_cache=False
        FAIL: isolation (sdpa)
        """
        title = f"{'check':<12}{'attention':<21}{'result':<14}{'measured':>9}{'limit':>9}"
        lines = [self.subject, title]
        for finding in self.findings:
            lines += finding.lines()
        return "\n".join([*lines, self.verdict])
