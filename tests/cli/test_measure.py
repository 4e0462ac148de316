"""``brimful measure``: exact lengths, as lines, as JSON, and in a table."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from brimful.clusters import LengthCache
from brimful.errors import CacheMismatchError
from brimful.measure import LengthTable
from brimful.serve import open_packs
from brimful.trees.prefixes import prefixes_of
from tests.cli.tools import LENGTHS, refused, result_of, run, value


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


def test_rows_of_two_samples_are_announced_as_rows(tokenizer: Path, tmp_path: Path) -> None:
    """Without it a file of one preference seems to have two."""
    (tmp_path / "pairs.jsonl").write_text('{"prompt": "1+1?", "chosen": "two", "rejected": "three"}\n')
    _, err = run("measure", tmp_path / "pairs.jsonl", "--tokenizer", tokenizer)
    assert err[0] == f"{tmp_path / 'pairs.jsonl'}: 2 samples of 1 row, format preference (detected)"


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


def test_measure_finds_prefixes(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it no plan on the command line could share them."""
    words = ("measure", chats, "-o", tmp_path / "l", "--tokenizer", tokenizer, "--quiet")
    run(*words, "--share", "prefixes", "--least-shared", "5", "--share-within", "row")
    prefixes = prefixes_of(LengthTable.open(tmp_path / "l"))
    assert (len(prefixes), prefixes.least, prefixes.shared.any()) == (6, 5, False)
    run(*words, "--share", "prefixes", "--least-shared", "5", "--on-mismatch", "rebuild")
    prefixes = prefixes_of(LengthTable.open(tmp_path / "l"))
    assert prefixes.shared.max() >= 5


def test_measure_takes_a_second_budget(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it users cannot plan for equal numbers of loss tokens."""
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


def test_lengths_for_a_training_with_augmentation(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """The file of a training writes its lengths, and the same settings in Python find them: nothing is measured again."""
    config, path = tmp_path / "train.yaml", tmp_path / "lengths.arrow"
    config.write_text(f"tokenizer: {tokenizer}\naugmentation:\n  crop: 224\n  scale: [0.8, 1.0]\n  mirror: yes\n")
    run("measure", chats, "--config", config, "-o", path, "--quiet")
    cache = LengthCache(path, {"crop": 224, "scale": [0.8, 1.0], "mirror": True})
    assert cache.lengths(str(chats), str(tokenizer)).tokens.tolist() == LengthTable.open(path).tokens.tolist()
    with pytest.raises(CacheMismatchError, match="augmentation crop") as caught:
        LengthCache(path, {"crop": 336, "scale": [0.8, 1.0], "mirror": True}).lengths(str(chats), str(tokenizer))
    assert f"brimful measure {chats} --tokenizer {tokenizer} --augmentation crop=336 " in caught.value.message
    assert "crop=224" in refused("measure", chats, "--tokenizer", tokenizer, "--augmentation", "crop")


def test_transforms_are_measured_planned_and_packed(
    chats: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it lengths that augmentation changes can only be measured by a script."""
    (tmp_path / "halving.py").write_text(
        "from dataclasses import replace\n"
        "def half(sample):\n"
        "    *turns, last = sample.messages\n"
        '    return replace(sample, messages=[*turns, {**last, "content": last["content"][::2]}])\n'
    )
    monkeypatch.chdir(tmp_path)
    options = ("--tokenizer", tokenizer, "--transform", "halving:half", "--quiet")
    run("measure", chats, "-o", "lengths.arrow", *options)
    halves = [length - (length - 23) // 2 for length in LENGTHS]
    assert LengthTable.open("lengths.arrow").tokens.tolist() == halves
    run("plan", "lengths.arrow", "--max-length", 70, "-o", "plan.arrow")
    run("write", "plan.arrow", chats, "-o", "written", *options)
    run("pack", chats, "-o", "packs", "--max-length", 70, *options)
    written, packs = open_packs("written"), open_packs("packs")
    assert list(written) == list(packs)
    assert packs.num_tokens == sum(halves)
    assert "encodes to 50 tokens and was planned with 37" in refused(
        "write", "plan.arrow", chats, "-o", "plain", "--tokenizer", tokenizer, "--quiet"
    )


def test_transforms_are_named_as_modules_name_them(chats: Path, tokenizer: Path) -> None:
    """Without it the error is a traceback of the import."""
    for text, words in [
        ("half", "--transform 'half' must be MODULE:NAME"),
        ("nowhere_to_be_found:half", "--transform nowhere_to_be_found:half: No module named"),
        ("json:half", "--transform json:half: module 'json' has no attribute 'half'"),
        ("math:pi", "transforms[0] must be a function from a sample to a sample"),
    ]:
        assert words in refused("measure", chats, "--tokenizer", tokenizer, "--transform", text)
