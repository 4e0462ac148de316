"""What ``verify_packing`` found: one finding for each check and attention implementation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import Enum
from typing import Any

from brimful.messages import counted

__all__ = ["CHECKS", "Finding", "Status", "VerifyReport"]

CHECKS = {
    "untouched": "the collator leaves the samples it was given as they are",
    "complete": "every token of every sample is in the batch once",
    "labels": "every target is predicted by the token before it, and nothing predicts another sample",
    "positions": "positions begin anew with every sample",
    "boundaries": "cu_seqlens and seq_idx say exactly where samples begin and end",
    "padding": "padding has no label, is no crowd of tiny samples, and what stands in it moves nothing",
    "attention": "the implementation runs with this model and this batch",
    "isolation": "other tokens in one sample do not move the logits of another",
    "training": "isolation holds in training mode too",
    "logits": "a sample has the logits that it has alone",
    "loss": "the loss is the mean over all targets, as one by one",
    "gradients": "the gradients are those of the samples one by one",
    "weights": "micro-batches of different target counts add up to the mean over all targets",
}
"""Every check by its name, in the order of the report."""


class Status(str, Enum):
    """How a check ended."""

    PASS = "PASS"
    """Shown to hold."""
    FAIL = "FAIL"
    """Shown not to hold: training with this would be silently wrong."""
    NOT_SUPPORTED = "NOT SUPPORTED"
    """Could not be run here; the finding says why, and the nearest setting that works."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the report.

    Attributes:
        check: a key of ``CHECKS``.
        attention: the attention implementation; empty where none is involved.
        status: how it ended.
        measured: largest difference found, relative to the largest value (at least 1); None where nothing is measured.
        limit: most that ``measured`` may be.
        detail: the numbers in words.
        cause: the likely cause of a failure.
        way_out: what to change.
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


@dataclass(frozen=True)
class VerifyReport:
    """Everything that was checked.

    Attributes:
        subject: model, collator and data in one line.
        findings: in the order of ``CHECKS``, one for each attention implementation where one is involved.
    """

    subject: str
    findings: tuple[Finding, ...]

    @property
    def failures(self) -> tuple[Finding, ...]:
        """What is wrong."""
        return tuple(finding for finding in self.findings if finding.status is Status.FAIL)

    @property
    def proven(self) -> bool:
        """Isolation was shown with at least one attention implementation."""
        return any(finding.check == "isolation" and finding.status is Status.PASS for finding in self.findings)

    @property
    def ok(self) -> bool:
        """Nothing failed, and isolation was shown at least once: a refusal alone proves nothing."""
        return not self.failures and self.proven

    @property
    def verdict(self) -> str:
        """One line: the first failures, or what was shown."""
        if self.failures:
            names = [
                f"{found.check} ({found.attention})" if found.attention else found.check for found in self.failures
            ]
            shown = ", ".join(names[:6]) + (f" and {len(names) - 6} more" if len(names) > 6 else "")
            return f"FAIL: {shown}"
        if not self.proven:
            reason = next((found.detail for found in self.findings if found.status is Status.NOT_SUPPORTED), "")
            return f"NOT PROVEN: isolation was shown with no attention implementation; {reason}"
        passed = self._passed("isolation")
        if self._passed("loss"):
            only = [name for name in passed if name not in self._passed("training")]
            remark = f"; in training mode it was not shown with {', '.join(only)}" if only else ""
            return f"PASS: packing is right with {', '.join(passed)}{remark}"
        reason = next(
            (found.detail for found in self.findings if found.check in ("loss", "labels") and found.detail), ""
        )
        return f"PASS: samples are apart with {', '.join(passed)}; LOSS NOT CHECKED: {reason}"

    def _passed(self, check: str) -> list[str]:
        """Attention implementations with which a check passed."""
        return [found.attention for found in self.findings if (found.check, found.status) == (check, Status.PASS)]

    def as_dict(self) -> dict[str, Any]:
        """For machines: plain strings and numbers."""
        findings = [{**asdict(finding), "status": finding.status.value} for finding in self.findings]
        return {"ok": self.ok, "verdict": self.verdict, "subject": self.subject, "findings": findings}

    def __repr__(self) -> str:
        return f"VerifyReport({counted(len(self.findings), 'finding')}, {self.verdict})"

    def __str__(self) -> str:
        from brimful.verify.table import draw_table

        return "\n".join(draw_table(self))
