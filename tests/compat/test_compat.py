"""The page of compatibility says what the records hold, and a run that was killed does each check once."""

import pytest

from tests.compat import __main__ as compat
from tests.compat.environments import ROOT, first_line
from tests.compat.page import page_of
from tests.compat.trainer import CHECKS, Outcome, Record, Trainer

TRAINERS = {
    "a": Trainer("A", "a", page="trl.md", ours=("x",), own=("y",), remarks=(("1.10", "theirs"),)),
    "b": Trainer("B", "b", why_no_step="needs a GPU"),
}


def test_a_page_says_what_passed_what_failed_and_what_was_not_run():
    versions = {"python": "3.11", "torch": "2.13.0", "transformers": "5.24"}
    first = {"page": Outcome(True, "1"), "step": Outcome(True, "loss 2"), "ours": Outcome(False, "2 of 3 fail: x")}
    second = {"page": Outcome(None, ""), "step": Outcome(None, "needs a GPU"), "own": Outcome(True, "5")}
    records = [
        Record("b", "2.10", "3.0", "2026-11-26", versions, "", second),
        Record("a", "1.9", "1.10", "2026-11-26", {}, "torch<2.12"),
        Record("a", "1.10", "1.10", "2026-11-26", versions, "", first),
    ]
    text = page_of(records, TRAINERS)
    table = [line for line in text.splitlines() if line.startswith("|")]
    assert table[2:] == [
        "| [A](trainers/trl.md) | 1.10 | 5.24 | 2026-11-26 | runs | loss 2 | **failed** | not yet |",
        "| [A](trainers/trl.md) | 1.9 |  | 2026-11-26 | not installed |  |  |  |",
        "| B | 2.10 | 5.24 | 2026-11-26 |  |  | not yet | 5 |",
    ]
    failures, gaps = (part.splitlines()[2:] for part in text.split("\n## ")[1:])
    assert [line for line in failures if line] == ["* A 1.10, our tests: theirs"]
    assert gaps == [
        "* installing: `torch<2.12`: A",
        "* step: needs a GPU: B",
        "* a newer release, not for the Python of this page: B 3.0",
    ]


def test_a_killed_run_goes_on(tmp_path, monkeypatch):
    """Killed in its second check: the first is kept, the others run later, and then none."""
    calls = []

    def run_check(check, name, record, folder):
        calls.append(check)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return Outcome(True, check)

    monkeypatch.setattr(compat, "run_check", run_check)
    monkeypatch.setattr(compat, "make_environment", lambda *args: "")
    monkeypatch.setattr(compat, "installed", lambda folder: {})
    with pytest.raises(KeyboardInterrupt):
        compat.run_release("trl", "1.0", "1.0", CHECKS, tmp_path)
    for _ in range(2):
        compat.run_release("trl", "1.0", "1.0", CHECKS, tmp_path)
    assert calls == [CHECKS[0], CHECKS[1], *CHECKS[1:]]
    record = Record.load(tmp_path / "results" / "trl-1.0.json")
    assert record.outcomes == {check: Outcome(True, check) for check in CHECKS}


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("Traceback\n  File x\nValueError: no\n", "ValueError: no"),
        ("error: no wheel\nhint: y", "no wheel"),
        ("cannot read /tmp/folder/x.py", "cannot read …/x.py"),
        ("RuntimeError: see https://a.org/b/c/d.html", "RuntimeError: see https://a.org/b/c/d.html"),
        ("", "no message"),
    ],
)
def test_the_line_that_says_most(text, line):
    assert first_line(text) == line


@pytest.mark.parametrize("name", compat.NAMES)
def test_every_trainer_names_what_exists(name):
    """A renamed test or page would be reported as the fault of a trainer."""
    trainer = compat.trainer_of(name)
    assert not trainer.page or (ROOT / "docs" / "trainers" / trainer.page).exists()
    paths = [word.partition("::")[0] for word in trainer.ours if word.startswith("tests/")]
    assert all((ROOT / path).exists() for path in paths)
    program = ROOT / "tests" / "compat" / "trainers" / f"{name}.py"
    assert bool(trainer.why_no_step) != ("def main()" in program.read_text(encoding="utf-8"))
