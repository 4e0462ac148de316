"""Report of ``doctor``: what packing does in a run, line by line, and what is wrong with it."""

import re
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from enum import Enum
from functools import cache
from typing import Any

from brimful.base.wording import counted
from brimful.doctor.fact_files import read_toml

TOPICS = {
    "packing": "packing",
    "samples": "samples",
    "isolation": "samples apart",
    "attention": "attention",
    "positions": "positions",
    "targets": "targets",
    "divisor": "divisor of the loss",
    "long": "long samples",
    "tokens": "BOS and EOS",
    "tail": "tail of an epoch",
    "steps": "equal steps",
    "alignment": "alignment",
    "step": "samples a step",
}
"""Topics in the order of the report, with their titles."""

_NEXT = {"positions": "probe", "targets": "--batch", "divisor": "tell_loss of the probe"}
"""Topics that a headline names if they are unknown, with what looks at them."""

_WIDTH = 110
"""Characters of the longest line of the table."""


@dataclass(frozen=True, slots=True)
class Problem:
    """One kind of fault.

    Attributes:
        name: such as ``neighbors_seen``.
        sentence: what it does to a training, for a person who does not know packing.
        threads: links to where it happened.
    """

    name: str
    sentence: str
    threads: tuple[str, ...]


@cache
def problems() -> dict[str, Problem]:
    """Return all problems by name, from ``problems.toml``."""
    return {
        name: Problem(name, entry["sentence"], tuple(entry["threads"]))
        for name, entry in read_toml("problems.toml").items()
    }


class Evidence(str, Enum):
    """Depth at which a line is known; a later member is stronger."""

    UNKNOWN = "unknown"
    """Nothing says it."""
    KNOWN = "known"
    """The configuration and the version of the trainer say it."""
    SEEN = "seen"
    """A batch has it."""
    SHOWN = "shown"
    """A probe in the running job measured it."""


class Judgment(str, Enum):
    """Weight of a finding."""

    WRONG = "wrong"
    """Training goes on with silently wrong results."""
    SUSPECT = "suspect"
    """It may be wrong: a batch or a probe would show it."""


@dataclass(frozen=True, slots=True)
class Line:
    """A statement about one topic. A line never says that something is right.

    Attributes:
        topic: one of ``TOPICS``.
        text: what happens in this run.
        evidence: how that is known.
        source: file, thread or key that says so.
    """

    topic: str
    text: str
    evidence: Evidence = Evidence.UNKNOWN
    source: str = ""

    def __post_init__(self) -> None:
        assert self.topic in TOPICS, self.topic


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, or may be.

    Attributes:
        topic: one of ``TOPICS``.
        judgment: wrong or suspect.
        detail: what was found, with numbers, keys and places.
        evidence: the depth that found it.
        problem: name in ``problems``: the sentence for a person who does not know packing, and the
            thread where it happened before; empty if it never has.
        change: the line to change.
        thread: link to this very case; those of the problem if empty.
    """

    topic: str
    judgment: Judgment
    detail: str
    evidence: Evidence
    problem: str = ""
    change: str = ""
    thread: str = ""

    def __post_init__(self) -> None:
        assert self.topic in TOPICS, self.topic

    @property
    def known_problem(self) -> Problem | None:
        """The problem of this name; None without one."""
        return problems()[self.problem] if self.problem else None

    @property
    def threads(self) -> tuple[str, ...]:
        """Links to where it happened before."""
        problem = self.known_problem
        return (self.thread,) if self.thread else problem.threads if problem else ()

    @property
    def meaning(self) -> str:
        """Effect on a training, for a person who does not know packing; empty if unknown."""
        problem = self.known_problem
        return problem.sentence if problem else ""

    def paragraphs(self) -> list[tuple[str, str]]:
        """Return title and text of each part that is not empty."""
        parts = (
            ("", self.detail),
            ("that means", self.meaning),
            ("change", self.change),
            ("seen before", " ".join(self.threads)),
        )
        return [(title, text) for title, text in parts if text]


def wrong(topic: str, problem: str, detail: str, change: str = "", thread: str = "") -> Finding:
    """Return a finding about what a batch shows to be wrong."""
    return Finding(topic, Judgment.WRONG, detail, Evidence.SEEN, problem, change, thread)


def suspect(topic: str, problem: str, detail: str, change: str = "") -> Finding:
    """Return a finding about what may be wrong, depending on what a batch does not show."""
    return Finding(topic, Judgment.SUSPECT, detail, Evidence.SEEN, problem, change)


@dataclass(frozen=True)
class DoctorReport:
    """Lines about a run, and findings.

    Attributes:
        subject: what was read: trainer, version, file, batch or job.
        lines: in the order of ``TOPICS``.
        findings: what is wrong comes first.
        notes: numbers and texts below the table, such as the first segments of a batch.
    """

    subject: str
    lines: tuple[Line, ...]
    findings: tuple[Finding, ...] = ()
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        order = list(TOPICS)
        lines = sorted(self.lines, key=lambda line: order.index(line.topic))
        findings = sorted(
            self.findings,
            key=lambda item: (item.judgment is not Judgment.WRONG, order.index(item.topic)),
        )
        object.__setattr__(self, "lines", tuple(lines))
        object.__setattr__(self, "findings", tuple(findings))

    @property
    def ok(self) -> bool:
        """True if nothing was found. What no depth has looked at may still be wrong."""
        return not self.findings

    @property
    def isolation(self) -> Evidence:
        """Strongest evidence that samples are apart."""
        return max(
            (line.evidence for line in self.lines if line.topic == "isolation"),
            key=list(Evidence).index,
            default=Evidence.UNKNOWN,
        )

    @property
    def verdict(self) -> str:
        """One line: what is wrong; else how far was looked, and what is unknown."""
        if self.findings:
            worst = self.findings[0].judgment
            titles = [TOPICS[item.topic] for item in self.findings if item.judgment is worst]
            return f"{worst.value.upper()}: {', '.join(dict.fromkeys(titles))}"
        topics = {line.topic for line in self.lines if line.evidence is not Evidence.UNKNOWN}
        gaps = [f"{TOPICS[topic]} ({way})" for topic, way in _NEXT.items() if topic not in topics]
        remarks = {
            Evidence.UNKNOWN: (
                "how samples are kept apart is unknown: compare them by brimful doctor --batch "
                "MODULE:LOADER --samples MODULE:SAMPLES"
            ),
            Evidence.KNOWN: "known from the configuration alone, seen in no batch",
            Evidence.SEEN: "seen in the batch; that the model obeys it was not shown",
            Evidence.SHOWN: "samples were shown to be apart",
        }
        head = "NOT SHOWN" if self.isolation is Evidence.UNKNOWN else "NOTHING FOUND"
        text = f"{head}: {remarks[self.isolation]}"
        return f"{text}; unknown: {', '.join(gaps)}" if gaps else text

    def with_others(self, *others: "DoctorReport") -> "DoctorReport":
        """Return one report of several depths: the strongest evidence of each topic, all
        findings.
        """
        reports = [report for report in (self, *others) if report.lines or report.findings]
        lines = [line for report in reports for line in report.lines]
        rank = list(Evidence).index
        strongest: dict[str, int] = {}
        for line in lines:
            strongest[line.topic] = max(rank(line.evidence), strongest.get(line.topic, 0))
        return DoctorReport(
            "; ".join(report.subject for report in reports),
            tuple(line for line in lines if rank(line.evidence) == strongest[line.topic]),
            tuple(dict.fromkeys(item for report in reports for item in report.findings)),
            tuple(note for report in reports for note in report.notes),
        )

    def redacted(self) -> "DoctorReport":
        """Return the report without paths, URLs of data, hosts and texts of samples, for an issue.

        >>> DoctorReport("TRL 1.16, /home/ann/run.yaml", ()).redacted().subject
        'TRL 1.16, <path>/run.yaml'
        """
        return replace(
            self,
            subject=_without_paths(self.subject),
            lines=tuple(
                replace(line, text=_without_paths(line.text), source=_without_paths(line.source))
                for line in self.lines
            ),
            findings=tuple(
                replace(
                    item, detail=_without_paths(item.detail), change=_without_paths(item.change)
                )
                for item in self.findings
            ),
            notes=(),
        )

    def as_dict(self) -> dict[str, Any]:
        """Return plain strings and numbers, for JSON."""
        findings = [
            {**_plain(item), "meaning": item.meaning, "threads": list(item.threads)}
            for item in self.findings
        ]
        return {
            "ok": self.ok,
            "verdict": self.verdict,
            "subject": self.subject,
            "lines": [_plain(line) for line in self.lines],
            "findings": findings,
            "notes": list(self.notes),
        }

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "DoctorReport":
        """Return the report of ``as_dict``."""
        return cls(
            values["subject"],
            tuple(_like(Line, line) for line in values["lines"]),
            tuple(_like(Finding, item) for item in values["findings"]),
            tuple(values["notes"]),
        )

    def __repr__(self) -> str:
        return f"DoctorReport({counted(len(self.findings), 'finding')}, {self.verdict})"

    def __str__(self) -> str:
        """Return the table: a line for each topic, then each finding with its change.

        >>> line = Line("packing", "on, rows of 4,096", Evidence.KNOWN)
        >>> print(str(DoctorReport("TRL 1.16", (line,))).partition(" is unknown")[0])
        TRL 1.16
        packing             known    on, rows of 4,096
        NOT SHOWN: how samples are kept apart
        """
        return "\n".join([self.subject, *self._table(), *self.notes, self.verdict])

    def _table(self) -> Iterator[str]:
        for line in self.lines:
            head = f"{TOPICS[line.topic]:<20}{line.evidence.value:<9}"
            yield from _wrapped(line.text, head, " " * len(head))
        for item in self.findings:
            yield f"{item.judgment.value.upper()}: {TOPICS[item.topic]} ({item.evidence.value})"
            for title, text in item.paragraphs():
                yield from _wrapped(text, f"    {title}: " if title else "    ", " " * 6)


def _plain(item: Line | Finding) -> dict[str, str]:
    return {name: getattr(value, "value", value) for name, value in asdict(item).items()}


def _like(kind: Any, values: dict[str, Any]) -> Any:
    """Return a line or a finding from plain values, which may be more."""
    enums = {"evidence": Evidence, "judgment": Judgment}
    return kind(
        **{item.name: enums.get(item.name, str)(values[item.name]) for item in fields(kind)}
    )


def _wrapped(text: str, first: str, other: str) -> Iterable[str]:
    """Return the lines of a text, of which links are never broken."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=first,
        subsequent_indent=other,
        break_long_words=False,
        break_on_hyphens=False,
    ) or [first.rstrip()]


_PATH = re.compile(r"(?<![\w/.:])(?:~|[A-Za-z]:)?[\\/](?:[^\\/\s,;:'\"]+[\\/])+")
_ADDRESS = re.compile(r"\b(?:s3|gs|hf|az|hdfs)://[^\s,;'\"]+")


def _without_paths(text: str) -> str:
    """Return a text with folders replaced; links to threads stay."""
    return _PATH.sub("<path>/", _ADDRESS.sub("<address>", text))
