"""``brimful pack``: the whole job, its account, and what a second run does."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

from brimful.measure import LengthTable
from brimful.plan import Plan
from brimful.serve import open_packs
from tests.cli.tools import LENGTHS, outcome, refused, rendered, result_of, run, value


def test_pack_prints_the_account_of_the_whole_job(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it users do not see what was dropped, how full the packs are, or that more is not possible."""
    out, _ = run("pack", chats, "-o", tmp_path / "p", "--tokenizer", tokenizer, "--max-length", 70, "--quiet")
    assert value(out, "samples") == f"6 in {chats} (format messages)"
    assert value(out, "tokens") == "218, 36 a sample"
    assert value(out, "targets") == "86 (39.4 % of the tokens); every sample has one"
    assert value(out, "packs") == "4 of 70 tokens in 1 shard"
    assert value(out, "fill") == "77.86 %"
    assert value(out, "lower bound") == "4 packs: at what any plan needs (auto: best_fit_decreasing meets the bound)"
    assert value(out, "samples/pack") == "1.5 on average, median 1, most 2"
    assert value(out, "dropped") == "0 samples (0.00 %), 0 tokens (0 %): longer than a pack"
    assert value(out, "cut") == "0 truncated, 0 tokens (0 %) lost; 0 split into segments"
    assert value(out, "rejected") == "0 rows"
    for stage in ("measure ", "plan ", "write "):
        assert stage in value(out, "time")


def test_pack_leaves_every_token_once(packs: Path, tokenizer: Path) -> None:
    """Without it the summary may be right and the packs wrong."""
    from transformers import AutoTokenizer

    decode = AutoTokenizer.from_pretrained(tokenizer).decode
    found: dict[int, str] = {}
    for pack in open_packs(packs):
        for number, sample_id in enumerate(pack.sample_ids.tolist()):
            assert sample_id not in found
            found[sample_id] = decode(pack.segment(number).tolist())
    assert found == {number: rendered(number) for number in range(6)}


def test_pack_gives_json_and_keeps_it_beside_the_packs(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it the account of a job is gone with the terminal."""
    result = result_of("pack", chats, "-o", tmp_path / "p", "--tokenizer", tokenizer, "--max-length", 70)
    assert result == json.loads((tmp_path / "p" / "summary.json").read_text())
    assert (result["num_packs"], result["lower_bound"], result["shards"], result["capacity"]) == (4, 4, 1, 70)
    assert (result["samples_in"], result["samples_packed"]) == (6, 6)
    assert (result["tokens_in"], result["tokens_packed"]) == (218, 218)
    assert result["fill_ratio"] == 218 / 280
    assert result["plan_fingerprint"] == Plan.open(tmp_path / "p" / "plan.arrow").fingerprint
    assert LengthTable.open(tmp_path / "p" / "lengths.arrow").tokens.tolist() == LENGTHS


def test_pack_a_second_time_does_nothing_and_says_so(chats: Path, packs: Path, tokenizer: Path) -> None:
    """Without it a job that Slurm starts again repeats hours of work, or leaves a user guessing whether it did."""

    def files() -> dict[str, tuple[int, int, bytes]]:
        found = [path for path in packs.rglob("*") if path.is_file() and path.name != "summary.json"]
        return {str(path): (path.stat().st_ino, path.stat().st_mtime_ns, path.read_bytes()) for path in found}

    before = files()
    out, _ = run("pack", chats, "-o", packs, "--tokenizer", tokenizer, "--max-length", 70, "--quiet")
    assert files() == before
    assert value(out, "packs") == "4 of 70 tokens in 1 shard"
    assert "nothing to do" in value(out, "time")


def test_pack_goes_on_where_it_was_stopped(chats: Path, packs: Path, tokenizer: Path) -> None:
    """Without it the second run of a stopped job starts from the beginning, or ends with other bytes."""
    before = {path.name: path.read_bytes() for path in (packs / "shards").iterdir()}
    for path in (packs / "log").iterdir():
        path.unlink()
    out, _ = run("pack", chats, "-o", packs, "--tokenizer", tokenizer, "--max-length", 70, "--quiet")
    assert "write " in value(out, "time")
    assert {path.name: path.read_bytes() for path in (packs / "shards").iterdir()} == before
    assert len(open_packs(packs)) == 4


def test_pack_writes_the_labels_that_are_asked_for(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it --train-on is taken and forgotten."""
    base = ("pack", chats, "--tokenizer", tokenizer, "--max-length", 70, "--quiet")
    run(*base, "-o", tmp_path / "some")
    run(*base, "-o", tmp_path / "all", "--train-on", "all")
    some, every = open_packs(tmp_path / "some"), open_packs(tmp_path / "all")
    assert sum(pack.num_loss_tokens for pack in some) == sum(length - 22 for length in LENGTHS)
    assert sum(pack.num_loss_tokens for pack in every) == sum(LENGTHS) - 6  # the first token of a sample has no context


def test_pack_takes_several_files_in_the_order_given(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it the second file on the command line is lost, or sample ids depend on names."""
    lines = chats.read_text().splitlines(keepends=True)
    (tmp_path / "b.jsonl").write_text("".join(lines[:2]))
    (tmp_path / "a.jsonl").write_text("".join(lines[2:]))
    run(
        *("pack", tmp_path / "b.jsonl", tmp_path / "a.jsonl", "-o", tmp_path / "p"),
        *("--tokenizer", tokenizer, "--max-length", 70, "--quiet"),
    )
    assert LengthTable.open(tmp_path / "p" / "lengths.arrow").tokens.tolist() == LENGTHS


def test_the_same_command_works_again_where_packs_go_into_the_data(chats: Path, tokenizer: Path) -> None:
    """Without it the second run reads the packs of the first as data."""
    command = ("pack", chats.parent, "-o", chats.parent / "packs", "--tokenizer", tokenizer, "--max-length", 70)
    result = result_of(*command)
    assert result["samples_in"] == 6
    assert {**result_of(*command), "seconds": 0} == {**result, "seconds": 0}


def test_a_directory_of_other_things_takes_no_packs(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it packs are mixed in among them, and summary.json of another job is written over."""
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "summary.json").write_text("mine")
    for command in (
        ("pack", chats, "-o", tmp_path / "runs", "--tokenizer", tokenizer, "--max-length", 70),
        ("produce", chats, "-o", tmp_path / "runs", "--tokenizer", tokenizer, "--max-length", 70),
    ):
        line = refused(*command, "--quiet")
        assert line.startswith(
            f"-o {tmp_path}/runs holds other files (summary.json), and nothing is written next to them"
        )
        assert line.endswith(f"such as {tmp_path}/runs/packs")
        for place in (chats, chats / "packs"):
            assert refused(*command[:3], place, *command[4:], "--quiet") == f"-o {chats} is a file: name a directory"


def test_a_format_is_not_announced_where_the_first_row_is_none(tmp_path: Path, tokenizer: Path) -> None:
    """Without it a directory of a tokenizer is said to hold texts."""
    (tmp_path / "a.jsonl").write_text('{\n"a text"\n"another"\n')
    options = ("-o", tmp_path / "p", "--tokenizer", tokenizer, "--max-length", 70)
    code, _, err = outcome("pack", tmp_path / "a.jsonl", *options)
    assert code == 2
    assert "detected" not in err


def test_two_faults_are_one_answer_with_the_flags_that_leave_them_out(
    chats: Path, tokenizer: Path, tmp_path: Path
) -> None:
    """Without it each run names one fault, after the rows were measured again and again."""
    with open(chats, "a") as file:
        file.write(json.dumps({"messages": [{"role": "user", "content": "no answer"}]}) + "\n")
    command = ("pack", chats, "-o", tmp_path / "p", "--tokenizer", tokenizer, "--max-length", 50, "--quiet")
    line = refused(*command)
    assert line.startswith("1 of 7 samples have no target of the loss (1: it has no turn of the assistant): sample 6.")
    assert (
        f"; the first is {chats}:7. Also, 1 of 7 samples are longer than the capacity of 50 tokens: sample 3 (60)."
        in line
    )
    flags = shlex.split(line.rpartition("To leave out all of them: ")[2])
    assert flags == ["--no-target", "drop", "--overflow", "drop"]
    assert result_of(*command, *flags)["samples_packed"] == 5
    assert "Also" not in refused(*command, "--overflow", "drop")
