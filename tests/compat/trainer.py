"""What is run for a trainer, and what came of it."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path

CHECKS = ("page", "step", "ours", "own")
"""Columns of the page, in the order in which they run."""


@dataclass(frozen=True)
class Trainer:
    """A trainer, as its file in ``tests/compat/trainers`` describes it.

    Attributes:
        name: as people write it.
        package: distribution in the index of packages.
        page: in ``docs/trainers``, whose code runs as it stands; empty if none.
        ours: tests of this repository that run the trainer's own code, as pytest takes them.
        own: files or tests of the trainer's source distribution that touch packing.
        needs: further requirements of its environment.
        variable: variable by which our tests find the packages of its environment, which they call in another process.
        why_no_step: reason if no step can run on a CPU.
        why_no_own: reason if its source distribution has no tests to run.
        remarks: what is to be known of a failure, by release, or by release and check (``1.0 ours``).
    """

    name: str
    package: str
    page: str = ""
    ours: tuple[str, ...] = ()
    own: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    variable: str = ""
    why_no_step: str = ""
    why_no_own: str = "no tests in its source distribution"
    remarks: tuple[tuple[str, str], ...] = ()


@dataclass
class Outcome:
    """What came of one check.

    Attributes:
        is_right: true if it passed; None if it could not run.
        text: figure, count of tests, or the first line of what went wrong.
    """

    is_right: bool | None
    text: str


@dataclass
class Record:
    """A release and what came of it, kept in a file from which a killed run goes on.

    Attributes:
        trainer: name of the file in ``tests/compat/trainers``.
        release: version.
        newest: the newest version of any Python.
        date: of the run, as 2026-11-26.
        versions: of other packages in its environment.
        refusal: why it cannot be installed here; empty if it is.
        outcomes: by check.
    """

    trainer: str
    release: str
    newest: str
    date: str
    versions: dict[str, str] = field(default_factory=dict)
    refusal: str = ""
    outcomes: dict[str, Outcome] = field(default_factory=dict)

    def save(self, path: Path) -> None:
        """Replace the file of the record whole."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_suffix(".part")
        part.write_text(json.dumps(dataclasses.asdict(self), indent=1), encoding="utf-8")
        part.replace(path)

    @classmethod
    def load(cls, path: Path) -> Record:
        """Read the file of a record."""
        fields = json.loads(path.read_text(encoding="utf-8"))
        fields["outcomes"] = {check: Outcome(**one) for check, one in fields["outcomes"].items()}
        return cls(**fields)
