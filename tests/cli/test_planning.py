"""``brimful plan``: its account, its JSON, and the comparison of ``--what-if``."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from brimful.plan import Alignment, Plan
from tests.cli.conftest import EIGHT_POINT_FOUR
from tests.cli.tools import LENGTHS, one_json, outcome, refused, result_of, run, shown, value


def test_plan_takes_a_table_an_array_or_a_data_set(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it the three ways to the same lengths lead to different packs."""
    run("measure", chats, "-o", tmp_path / "lengths.arrow", "--tokenizer", tokenizer, "--quiet")
    np.save(tmp_path / "lengths.npy", np.array(LENGTHS))
    ways = [
        (tmp_path / "lengths.arrow",),
        (tmp_path / "lengths.npy",),
        (chats, "--tokenizer", tokenizer),
    ]
    results = [result_of("plan", *way, "--max-length", 70) for way in ways]
    assert len({result["fingerprint"] for result in results}) == 1
    assert results[0]["num_packs"] == results[0]["lower_bound"] == 4
    assert results[0]["fill_ratio"] == 218 / 280
    assert (results[0]["samples_in"], results[0]["tokens_packed"], results[0]["segments"]) == (6, 218, 6)
    assert results[0]["path"] is None


def test_a_data_set_is_planned_as_it_is_packed_with_what_its_samples_share(tokenizer: Path, tmp_path: Path) -> None:
    """Without it --share is refused for lengths that were given without samples."""
    rows = [{"prompt": letter * 100, "completion": "wxyz"[number] * 9} for letter in "ab" for number in range(4)]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = (tmp_path / "rows.jsonl", "--tokenizer", tokenizer, "--max-length", 200, "--share", "prefixes")
    planned = result_of("plan", *options)
    packed = result_of("pack", *options, "-o", tmp_path / "packs", "--quiet")
    assert planned["fingerprint"] == packed["plan_fingerprint"]
    assert (packed["num_packs"], packed["tokens_shared"], packed["shared"]["sharing"]) == (2, 2 * 3 * 119, 8)
    assert packed["shared"]["not_shared"]["repeated_tokens"] == 0
    out, _ = run("report", tmp_path / "packs")
    assert (
        "Shared beginnings: 8 of 8 samples share their beginning with others of their pack, in 2 trees."
        in "\n".join(out)
    )


def test_tables_of_parts_are_planned_as_one(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Measured in two jobs, planned in one call without the data: the plan of all; in the wrong state refused by name."""
    rows = chats.read_text().splitlines(keepends=True)
    for name, part in (("a", rows[:4]), ("b", rows[4:])):
        (tmp_path / f"{name}.jsonl").write_text("".join(part))
    options = ("--tokenizer", tokenizer, "--cache-dir", tmp_path / "cache", "--quiet")
    parts, tables = [tmp_path / f"{name}.jsonl" for name in "ab"], [tmp_path / f"{name}.arrow" for name in "ab"]
    for source, table in zip(parts, tables, strict=True):
        run("measure", source, "-o", table, *options)
    run("measure", *parts, "-o", tmp_path / "all.arrow", *options)
    joined = result_of("plan", *tables, "--max-length", 70)
    assert joined["fingerprint"] == result_of("plan", tmp_path / "all.arrow", "--max-length", 70)["fingerprint"]
    error = refused("plan", tables[0], parts[1], "--max-length", 70)
    assert "a.arrow is a length table and" in error
    assert f"`brimful measure {parts[1]} -o FILE`" in error
    assert "they would be packed twice" in refused("plan", tables[0], tables[0], "--max-length", 70)


def test_a_table_that_waits_for_shares_is_named_with_them(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it a job array with a task that was killed for good ends in 'no such file'."""
    lengths = tmp_path / "lengths.arrow"
    measure = ("measure", chats, "-o", lengths, "--tokenizer", tokenizer, "--cache-dir", tmp_path / "cache", "--quiet")
    share = outcome(*measure, "--task-index", 1, "--num-tasks", 3)
    assert (share[0], share[2].partition(". ")[0]) == (
        0,
        "share 1 of 3 is done; 1 of 3 shares exist, and 0, 2 missing",
    )
    error = refused("plan", lengths, "--max-length", 70)
    assert "lengths.arrow is not there yet, of 3 shares 0, 2 are missing: brimful measure" in error
    assert "--task-index 0 and --num-tasks 3" in error or "--task-index 0 --num-tasks 3" in error
    run(*measure)
    assert result_of("plan", lengths, "--max-length", 70)["num_packs"] == 4
    assert not list(tmp_path.glob("*.shares.json")), "the note is gone with its reason"


def test_plan_prints_its_account_and_saves_the_plan(tmp_path: Path) -> None:
    """Without it the screen and the file have different numbers."""
    np.save(tmp_path / "lengths.npy", np.array([*LENGTHS, 100]))
    out, _ = run("plan", tmp_path / "lengths.npy", "--max-length", 70, "--overflow", "drop", "-o", tmp_path / "p.plan")
    plan = Plan.open(tmp_path / "p.plan")
    assert sorted(sorted(segment.sample_id for segment in pack) for pack in plan) == [[0, 1], [2], [3], [4, 5]]
    assert value(out, "packs") == f"4 of 70 tokens, {plan.fingerprint[:7]}"
    assert value(out, "fill") == "77.86 %"
    assert value(out, "lower bound") == "4 packs; the plan has 0 more"
    assert value(out, "samples") == "7 in: 6 packed, 1 dropped (14.29 %), 0 rejected"
    assert value(out, "tokens") == "318 in: 218 packed, 100 dropped (31.45 %), 0 truncated (0.00 %)"
    assert value(out, "cut") == "0 samples truncated, 0 split"
    assert (
        value(out, "settings") == "algorithm auto, overflow drop, seed 0, outcome best_fit_decreasing meets the bound"
    )
    assert value(out, "plan") == str(tmp_path / "p.plan")


@pytest.mark.parametrize("flag", ["--capacity", "--packing-length", "--seq-length"])
def test_the_names_that_others_use_for_capacity_mean_the_same(flag: str, tmp_path: Path) -> None:
    """Without it --capacity, the word of the whole documentation, is refused or has another meaning."""
    np.save(tmp_path / "lengths.npy", np.array(LENGTHS))
    ours = result_of("plan", tmp_path / "lengths.npy", "--max-length", 70)
    assert result_of("plan", tmp_path / "lengths.npy", flag, 70) == ours


@pytest.mark.parametrize(
    ("algorithm", "expected"),
    [
        ("next_fit", [[1], [1, 6], [3, 3], [5]]),
        ("first_fit_decreasing", [[1, 5], [1, 6], [3, 3]]),
        ("best_fit_decreasing", [[1, 3, 3], [1, 6], [5]]),
    ],
)
def test_plan_uses_the_algorithm_that_is_named(algorithm: str, expected: list[list[int]], tmp_path: Path) -> None:
    """Without it --algorithm is taken and forgotten."""
    np.save(tmp_path / "lengths.npy", np.array([3, 3, 5, 6, 1, 1]))
    run("plan", tmp_path / "lengths.npy", "--max-length", 7, "--algorithm", algorithm, "-o", tmp_path / "p.plan")
    packs = Plan.open(tmp_path / "p.plan")
    assert sorted(sorted(segment.length for segment in pack) for pack in packs) == expected


def test_the_stream_of_tokens_needs_no_second_option(tmp_path: Path) -> None:
    """Without it `wrapped`, the choice for documents, refuses the first document that is longer than a pack."""
    np.save(tmp_path / "lengths.npy", np.array([3, 9, 1]))
    (tmp_path / "plan.yaml").write_text("packing_strategy: wrapped\nmax_length: 4\n")
    for options in (("--max-length", 4, "--algorithm", "concat_split"), ("--config", tmp_path / "plan.yaml")):
        result = result_of("plan", tmp_path / "lengths.npy", *options)
        assert (result["num_packs"], result["samples_split"], result["tokens_packed"]) == (4, 1, 13)
        assert "sample 1 (9)" in refused("plan", tmp_path / "lengths.npy", *options, "--overflow", "error")


@pytest.mark.parametrize(
    ("flags", "alignment"),
    [
        (["--cp", 2, "--tp", 2, "--fp8", "mxfp8"], Alignment(segment=4, total=128)),
        (["--cp", 2, "--tp", 2, "--fp8", "mxfp8", "--align-for", "nemo_rl"], Alignment(segment=8, total=256)),
        (["--align-for", "slime"], Alignment(segment=1, total=128)),
    ],
)
def test_plan_is_aligned_for_a_trainer(flags: list[object], alignment: Alignment, tmp_path: Path) -> None:
    """Without it the rows of a trainer that pads more than the kernels need exceed its limit."""
    np.save(tmp_path / "lengths.npy", np.array(LENGTHS))
    run("plan", tmp_path / "lengths.npy", "--max-length", 512, *flags, "-o", tmp_path / "p.plan")
    assert Plan.open(tmp_path / "p.plan").alignment == alignment


def test_plan_takes_the_lengths_of_a_pack_store(home: Path) -> None:
    """Without it the lengths next to the packs have to be known by their file name."""
    _, out, _ = outcome("plan", home / "packs", "--max-length", 30, "--json")
    assert one_json(out)["samples_packed"] == 4


# ── --what-if ─────────────────────────────────────────────────────────────────────────────────────────────────────

RUN = ("--world-size", 8, "--gradient-accumulation-steps", 4)


def test_what_if_compares_and_saves_nothing(array, tmp_path):
    """Capacities half to four times, three algorithms each, and the advice below."""
    before = sorted(tmp_path.iterdir())
    out = shown("plan", array, "--max-length", 100, "--algorithm", "next_fit", "--what-if", *RUN, "--quiet")
    at = next(number for number, line in enumerate(out) if line.strip().startswith("capacity"))
    rows = [line.split() for line in out[at + 1 : out.index("", at)]]
    assert [(row[0], row[1]) for row in rows] == [
        ("50", "best_fit_decreasing"), ("50", "first_fit_decreasing"), ("50", "next_fit"),
        ("100", "next_fit"), ("100", "best_fit_decreasing"), ("100", "first_fit_decreasing"),
        ("200", "best_fit_decreasing"), ("200", "first_fit_decreasing"), ("200", "next_fit"),
        ("400", "best_fit_decreasing"), ("400", "first_fit_decreasing"), ("400", "next_fit"),
    ]  # fmt: skip
    assert rows[3][2] == "160"
    assert [row[-2:] for row in rows if "←" in row] == [["this", "plan"]]
    assert "samples/step   269, was 32 unpacked -> accumulation 4 → 1 gives 67" in out
    assert sorted(tmp_path.iterdir()) == before


def test_what_if_takes_capacities_and_gives_json(array):
    (line,) = shown("plan", array, "--max-length", 100, "--what-if", "--try-max-length", 12, "--json", "--quiet")
    data = json.loads(line)
    assert sorted({row["capacity"] for row in data["comparison"]}) == [12, 100]
    assert data["comparison"][0]["num_packs"] == len(EIGHT_POINT_FOUR)
    assert data["advice"]["micro_batch_size"] == 1
    (line,) = shown("plan", array, "--max-length", 100, "--json", "--quiet")
    assert "comparison" not in json.loads(line)


def test_what_if_leaves_out_what_is_too_long_and_says_so(array):
    """At 11 tokens the samples of 12 do not fit, and the policy `error` would stop the comparison."""
    (line,) = shown("plan", array, "--max-length", 100, "--what-if", "--try-max-length", 11, "--json", "--quiet")
    row = json.loads(line)["comparison"][0]
    assert (row["capacity"], row["oversized"], row["tokens_lost"]) == (11, 48 * 16, 48 * 16 * 12)


def test_what_if_contradictions_are_one_line(array, tmp_path):
    out = tmp_path / "p.arrow"
    assert "--what-if saves nothing" in refused("plan", array, "--max-length", 100, "--what-if", "-o", out)
    assert not out.exists()
    assert "add --what-if" in refused("plan", array, "--max-length", 100, "--try-max-length", 5)
    assert "'--try-max-length': 0 is not in the range" in refused(
        "plan", array, "--max-length", 9, "--what-if", "--try-max-length", 0
    )
    assert "--world-size" in refused("plan", array, "--max-length", 100, "--what-if", "--world-size", 0)
