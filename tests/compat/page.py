"""The page that ``make compat`` writes: a table of releases, and what failed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tests.compat.trainer import CHECKS, Outcome, Record, Trainer

HEAD = """\
# Compatibility

`make compat` installs the newest release of each trainer and the one before, each in an environment of its own, and writes this page from what it sees there, on
a CPU{pythons}. Torch is the one of our own tests, and packages for CUDA alone are left out. An empty cell is a check that the trainer does not have.

* *page*: the code of its page in [trainers](trainers/README.md) runs as it stands.
* *step*: one step of training with a tiny Qwen2 on packs, in the trainer's own loop, and its loss compared with the mean over the targets of its samples, each run
  alone. Of NeMo AutoModel it is its collater and its loss in a loop of ours.
* *our tests*: tests of this repository for the trainer that passed; some of them do not call its code.
* *its tests*: tests of the trainer's own source distribution on packing.

| trainer | release | tried on | page | step | our tests | its tests |
|---|---|---|---|---|---|---|
"""

TITLES = {"page": "page", "step": "step", "ours": "our tests", "own": "its tests"}


def page_of(records: Sequence[Record], trainers: Mapping[str, Trainer]) -> str:
    """Return the page of records, by name of the trainer and newest release first."""
    ordered = sorted(records, key=lambda record: sort_key(record, trainers))
    pythons = sorted({record.versions["python"] for record in records if "python" in record.versions})
    text = HEAD.format(pythons=f", with Python {' and '.join(pythons)}" if pythons else "")
    text += "".join(row(record, trainers[record.trainer]) for record in ordered)
    for title, lines in (
        ("What failed", notes(ordered, trainers, False)),
        ("What was not run", notes(ordered, trainers, None)),
        ("With", versions(ordered, trainers)),
    ):
        text += f"\n## {title}\n\n" + ("".join(f"* {line}\n" for line in lines) or "Nothing.\n")
    return text


def sort_key(record: Record, trainers: Mapping[str, Trainer]) -> tuple[str, list[int]]:
    numbers = [-int(part) for part in re.findall(r"\d+", record.release)]
    return trainers[record.trainer].name.lower(), numbers


def row(record: Record, trainer: Trainer) -> str:
    """Return a line of the table."""
    name = f"[{trainer.name}](trainers/{trainer.page})" if trainer.page else trainer.name
    if record.refusal:
        cells = ["not installed", "", "", ""]
    else:
        cells = [cell(check, record.outcomes.get(check)) for check in CHECKS]
    return f"| {name} | {record.release} | {record.date} | {' | '.join(cells)} |\n"


def cell(check: str, outcome: Outcome | None) -> str:
    """Return what the table says of a check."""
    if outcome is None:
        return "not yet"
    if outcome.is_right is None and not outcome.text:
        return ""
    if outcome.is_right is None:
        return "not run"
    if not outcome.is_right:
        return "**failed**"
    return "runs" if check == "page" else outcome.text


def notes(records: Iterable[Record], trainers: Mapping[str, Trainer], is_right: bool | None) -> list[str]:
    """Return a line for each check that failed (False) or could not run (None), with the reason; equal reasons once."""
    places: dict[tuple[str, str], list[str]] = {}
    for record in records:
        name = trainers[record.trainer].name
        reasons = {
            TITLES[check]: outcome.text
            for check, outcome in record.outcomes.items()
            if outcome.is_right is is_right and outcome.text
        }
        if is_right is None and record.refusal:
            reasons["installing"] = record.refusal
        for title, reason in reasons.items():
            places.setdefault((f"{name}, {title}", reason), []).append(record.release)
        if is_right is None and record.newest != record.release and record.newest not in released(records, record):
            note = f"{record.newest} is the newest release, and is not for the Python of this page"
            places.setdefault((name, note), [])
    remarks = {} if is_right is None else dict(pair for trainer in trainers.values() for pair in named_remarks(trainer))
    return [
        f"{name}{' ' if found else ''}{' and '.join(found)}: {plain(reason)}{remarks.get((name.partition(',')[0], ' and '.join(found)), '')}"
        for (name, reason), found in places.items()
    ]


def named_remarks(trainer: Trainer) -> Iterable[tuple[tuple[str, str], str]]:
    """Yield the remarks on a trainer by its name and release."""
    for release, text in trainer.remarks:
        yield (trainer.name, release), f" ({text})"


def released(records: Iterable[Record], record: Record) -> set[str]:
    return {other.release for other in records if other.trainer == record.trainer}


def versions(records: Iterable[Record], trainers: Mapping[str, Trainer]) -> list[str]:
    """Return a line for each set of versions, with the releases that were run with it."""
    places: dict[str, list[str]] = {}
    for record in records:
        parts = [f"{name} {number}" for name, number in record.versions.items() if name not in ("python", "torch")]
        places.setdefault(", ".join(parts), []).append(f"{trainers[record.trainer].name} {record.release}")
    return [f"{parts}: {', '.join(names)}" for parts, names in places.items() if parts]


def plain(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return f"`{text.replace('`', '')}`" if re.search(r"[<>*_|\[\]]", text) else text
