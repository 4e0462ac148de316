"""``brimful measure``: exact lengths, as lines, as JSON, and in a table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np

from brimful.measure import LengthTable
from tests.cli.tools import LENGTHS, result_of, run, value


def test_measure_shows_and_saves_exact_lengths(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it the numbers that a plan is made from may not be the lengths of the samples."""
    out, err = run("measure", chats, "-o", tmp_path / "lengths.arrow", "--tokenizer", tokenizer)
    table = LengthTable.open(tmp_path / "lengths.arrow")
    assert table.tokens.tolist() == LENGTHS
    assert value(out, "lengths") == f"6 samples, 218 tokens, {table.fingerprint[:7]}"
    assert value(out, "tokens").startswith("mean 36.3, shortest 24, ")
    assert value(out, "tokens").endswith("longest 60")
    assert value(out, "source").startswith(f"{chats}, ")
    assert value(out, "table") == str(tmp_path / "lengths.arrow")
    assert err[0] == f"{chats}: 6 samples, format messages (detected)"
    assert err[-1].startswith("measure: 6/6 rows (100 %)")


def test_measure_is_quiet_when_asked(chats: Path, tokenizer: Path) -> None:
    """Without it --quiet in a script still fills a log."""
    _, err = run("measure", chats, "--tokenizer", tokenizer, "--quiet")
    assert err == []


def test_measure_gives_json_and_the_same_table_twice(chats: Path, tokenizer: Path) -> None:
    """Without it a script cannot read the result, or a second run measures again what is known."""
    first = result_of("measure", chats, "--tokenizer", tokenizer)
    assert {key: first[key] for key in ("samples", "tokens", "rejected")} == {
        "samples": 6,
        "tokens": 218,
        "rejected": 0,
    }
    assert first["fingerprint"] == LengthTable.from_lengths(LENGTHS).fingerprint
    written = Path(first["path"]).stat().st_mtime_ns
    assert result_of("measure", chats, "--tokenizer", tokenizer) == first
    assert Path(first["path"]).stat().st_mtime_ns == written


def test_measure_takes_a_second_budget(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it nobody can plan for equal numbers of loss tokens."""
    out, _ = run("measure", chats, "-o", tmp_path / "l", "--tokenizer", tokenizer, "--budget", "loss_tokens", "--quiet")
    answers = [length - 23 + 1 for length in LENGTHS]
    assert LengthTable.open(tmp_path / "l").budgets["loss_tokens"].tolist() == answers
    assert value(out, "loss_tokens").startswith(f"mean {np.mean(answers):.1f}, shortest 2, ")


def test_measure_counts_skipped_rows(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it rows that were skipped are in no number and no list."""
    with open(chats, "a") as file:
        file.write("{\n")
    table = tmp_path / "lengths.arrow"
    out, _ = run("measure", chats, "-o", table, "--tokenizer", tokenizer, "--on-bad-sample", "skip", "--quiet")
    assert value(out, "rejected") == "1 malformed row"
    assert LengthTable.open(table).tokens.tolist() == [*LENGTHS, -1]
    assert json.loads(Path(f"{table}.rejects.jsonl").read_text())["where"] == f"{chats}:7"
