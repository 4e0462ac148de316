"""The page that ``make compat`` writes: a table of releases, and what failed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence

from tests.compat.trainer import CHECKS, Outcome, Record, Trainer

HEAD = """\
# Compatibility

`make compat` installs the newest release of each trainer and the one before, each in an environment of its own, and writes this page from what it sees there, on
a CPU{pythons}. Torch is the one of our own tests, and packages for CUDA alone are left out. Why a cell is empty stands below.

* *page*: the code of its page in [trainers](trainers/README.md) runs as it stands.
* *step*: one step of training with a tiny Qwen2 on packs, in the trainer's own loop, and its loss compared with the mean over the targets of its samples, each run
  alone. Of NeMo AutoModel it is its collater and its loss in a loop of ours; for
  LLaMA-Factory an empty module stands for torchaudio.
* *our tests*: tests of this repository for the trainer that passed; some of them do not call its code.
* *its tests*: tests of the trainer's own source distribution on packing.

| trainer | release | Transformers | tried on | page | step | our tests | its tests |
|---|---|---|---|---|---|---|---|
"""

TITLES = {"page": "page", "step": "step", "ours": "our tests", "own": "its tests"}


def page_of(records: Sequence[Record], trainers: Mapping[str, Trainer]) -> str:
    """Return the page of records, by name of the trainer and newest release first."""
    ordered = sorted(records, key=lambda record: sort_key(record, trainers))
    pythons = sorted({record.versions["python"] for record in records if "python" in record.versions})
    text = HEAD.format(pythons=f", with Python {' and '.join(pythons)}" if pythons else "")
    text += "".join(row(record, trainers[record.trainer]) for record in ordered)
    for title, lines in (("What failed", failures(ordered, trainers)), ("What was not run", gaps(ordered, trainers))):
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
    transformers = record.versions.get("transformers", "")
    return f"| {name} | {record.release} | {transformers} | {record.date} | {' | '.join(cells)} |\n"


def cell(check: str, outcome: Outcome | None) -> str:
    """Return what the table says of a check."""
    if outcome is None:
        return "not yet"
    if outcome.is_right is None:
        return ""
    if not outcome.is_right:
        return "**failed**"
    return "runs" if check == "page" else outcome.text


def failures(records: Iterable[Record], trainers: Mapping[str, Trainer]) -> list[str]:
    """Return a line for each release and reason: the remark on it, or its error."""
    places: dict[tuple[str, str], list[str]] = {}
    for record in records:
        trainer = trainers[record.trainer]
        remarks = dict(trainer.remarks)
        for check, outcome in record.outcomes.items():
            if outcome.is_right is False:
                reason = remarks.get(f"{record.release} {check}") or remarks.get(record.release) or plain(outcome.text)
                places.setdefault((f"{trainer.name} {record.release}", reason), []).append(TITLES[check])
    return [f"{name}, {' and '.join(checks)}: {reason}" for (name, reason), checks in places.items()]


def gaps(records: Sequence[Record], trainers: Mapping[str, Trainer]) -> list[str]:
    """Return a line for each reason why something could not be run, with the trainers that it holds for."""
    places: dict[str, dict[str, None]] = {}

    def note(reason: str, name: str) -> None:
        places.setdefault(reason, {})[name] = None

    for record in records:
        name = trainers[record.trainer].name
        if record.refusal:
            note(f"installing: {plain(record.refusal)}", name)
        for check, outcome in record.outcomes.items():
            if outcome.is_right is None and outcome.text:
                note(f"{TITLES[check]}: {plain(outcome.text)}", name)
        if record.newest not in {other.release for other in records if other.trainer == record.trainer}:
            note("a newer release, not for the Python of this page", f"{name} {record.newest}")
    return [f"{reason}: {', '.join(names)}" for reason, names in places.items()]


def plain(text: str) -> str:
    """Return text that Markdown shows as it is."""
    return f"`{text.replace('`', '')}`" if re.search(r"[<>*_|\[\]]", text) else text
