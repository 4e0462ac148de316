"""What each command promises in its help: the lines and numbers that people read, the JSON that machines read.

Six chats of known lengths go through every command. The tokenizer has one token a byte, and a turn costs its role, its
content and four tokens of markup, so that a chat of contents ``u`` and ``a`` bytes long has ``u + a + 21`` tokens::

    <|im_start|> u s e r \\n … <|im_end|> \\n <|im_start|> a s s i s t a n t \\n … <|im_end|> \\n
"""

import contextlib
import io
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brimful.cli import main
from brimful.measure import LengthTable
from brimful.plan import Plan
from brimful.serve import open_packs

LENGTHS = [30, 30, 50, 60, 24, 24]
"""Packs at capacity 70, best fit decreasing: 60 · 50 · 30 30 · 24 24, of 280 tokens."""

TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"


def rendered(number: int) -> str:
    question, answer = f"{number}?", chr(ord("a") + number) * (LENGTHS[number] - 23)
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"


def run(*arguments: Any) -> tuple[list[str], list[str]]:
    """The lines that a command prints, on standard output and on standard error; it must succeed."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as exit_info:
        main([str(argument) for argument in arguments])
    assert exit_info.value.code == 0, err.getvalue()
    return out.getvalue().splitlines(), err.getvalue().splitlines()


def result_of(*arguments: Any) -> dict[str, Any]:
    """What a command with --json prints: one line, and lines of JSON on standard error."""
    out, err = run(*arguments, "--json")
    assert len(out) == 1
    for line in err:
        assert json.loads(line)["event"] in ("progress", "message")
    return json.loads(out[0])


def value(lines: list[str], name: str) -> str:
    """What stands behind a name at the beginning of a line."""
    found = [line for line in lines if line.startswith(f"{name:<15}")]
    assert len(found) == 1, (name, lines)
    return found[0][15:]


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One token a byte, ChatML's special tokens, as ``transformers`` saves it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    directory = tmp_path_factory.mktemp("tokenizer")
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=TEMPLATE,
    ).save_pretrained(directory)
    return directory


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    with open(path, "w") as file:
        for number in range(len(LENGTHS)):
            answer = chr(ord("a") + number) * (LENGTHS[number] - 23)
            turns = [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": turns}) + "\n")
    return path


@pytest.fixture
def packs(chats: Path, tokenizer: Path, tmp_path: Path) -> Path:
    run("pack", chats, "-o", tmp_path / "packs", "--tokenizer", tokenizer, "--max-length", 70, "--quiet")
    return tmp_path / "packs"


# ── measure ───────────────────────────────────────────────────────────────────────────────────────────────────────


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


# ── plan ──────────────────────────────────────────────────────────────────────────────────────────────────────────


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


def test_plan_prints_its_account_and_saves_the_plan(tmp_path: Path) -> None:
    """Without it the numbers on the screen are not those of the file."""
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
    """Without it --capacity, the word of the whole documentation, is refused or means something else."""
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


# ── write ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_write_makes_the_packs_that_pack_makes(chats: Path, packs: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it planning first and writing later gives another training run than `pack` in one go."""
    plan, written = tmp_path / "chats.plan", tmp_path / "written"
    base = ("--tokenizer", tokenizer, "--quiet")
    run("plan", chats, "--max-length", 70, "-o", plan, *base)
    out, err = run("write", plan, chats, "-o", written, *base)
    assert out[-1].endswith("1 shard written now")
    assert "4 packs of 70, 218 tokens, fill 77.86 %" in out[-1]
    assert err == []
    assert [path.read_bytes() for path in sorted((written / "shards").iterdir())] == [
        path.read_bytes() for path in sorted((packs / "shards").iterdir())
    ]
    out, _ = run("write", plan, chats, "-o", written, *base)
    assert out[-1].endswith("0 shards written now")


def test_write_gives_json(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it a script has to read sentences."""
    run("plan", chats, "--max-length", 70, "-o", tmp_path / "p", "--tokenizer", tokenizer, "--quiet")
    command = ("write", tmp_path / "p", chats, "-o", tmp_path / "written", "--tokenizer", tokenizer)
    first = result_of(*command)
    assert first == {
        "directory": str(tmp_path / "written"),
        "packs": 4,
        "tokens": 218,
        "fill_ratio": 218 / 280,
        "shards_written": 1,
    }
    assert result_of(*command) == {**first, "shards_written": 0}


# ── pack ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pack_prints_the_account_of_the_whole_job(chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Without it nobody sees what was dropped, how full the packs are, or that more is not possible."""
    out, _ = run("pack", chats, "-o", tmp_path / "p", "--tokenizer", tokenizer, "--max-length", 70, "--quiet")
    assert value(out, "samples") == f"6 in {chats} (format messages)"
    assert value(out, "tokens") == "218, 36 a sample"
    assert value(out, "targets") == "86 (39.4 % of the tokens); every sample has one"
    assert value(out, "packs") == "4 of 70 tokens in 1 shard"
    assert value(out, "fill") == "77.86 %"
    assert value(out, "lower bound") == "4 packs: at what any plan needs (auto: best_fit_decreasing meets the bound)"
    assert value(out, "samples/pack") == "1.5 on average, median 2, most 2"
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


# ── inspect ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_inspect_shows_a_length_table(packs: Path) -> None:
    """Without it one of the files that brimful writes does not introduce itself."""
    out, _ = run("inspect", packs / "lengths.arrow")
    assert value(out, "lengths").startswith("6 samples, 218 tokens, ")


def test_inspect_shows_a_plan_and_a_pack_of_it(packs: Path) -> None:
    """Without it nobody can see which samples share a pack before they are written."""
    plan = Plan.open(packs / "plan.arrow")
    out, _ = run("inspect", packs / "plan.arrow")
    assert value(out, "packs") == f"4 of 70 tokens, {plan.fingerprint[:7]}"
    number = next(index for index in range(4) if len(plan.pack(index)) == 2 and plan.pack(index)[0].length == 30)
    first, second = (segment.sample_id for segment in plan.pack(number))
    out, _ = run("inspect", packs / "plan.arrow", "--pack", number)
    assert out == [
        f"pack {number}: 60 of 70 tokens, 2 segments",
        f"  sample {first:>10}  tokens 0 … 29",
        f"  sample {second:>10}  tokens 0 … 29",
    ]


def test_inspect_shows_a_store_and_checks_it(packs: Path, chats: Path, tokenizer: Path) -> None:
    """Without it nobody can tell what a directory of packs was made from, or whether it is whole."""
    out, _ = run("inspect", packs, "--check")
    assert value(out, "targets") == "86 in: 86 packed, 0 dropped, 0 lost to cuts"
    assert value(out, "packs") == "4 of 70 tokens in 1 shard"
    assert value(out, "fill") == "77.86 %, 218 tokens"
    assert value(out, "labels") == "train on assistant"
    assert value(out, "fingerprints").startswith(f"plan {Plan.open(packs / 'plan.arrow').fingerprint[:7]}, source ")
    assert value(out, "tokenizer").startswith(f"{tokenizer}, ")
    assert value(out, "source") == str(chats)
    assert value(out, "checked") == "1 shard, 4 packs, 218 tokens of 6 samples agree with log and plan"
    (packs / "plan.arrow").unlink()
    out, _ = run("inspect", packs, "--check")
    assert value(out, "checked").endswith("agree with log (no plan.arrow beside it)")


def test_inspect_shows_a_pack_with_its_text_and_targets(packs: Path) -> None:
    """Without it labels on the wrong tokens are found after the training run."""
    plan = Plan.open(packs / "plan.arrow")
    number = next(index for index in range(4) if plan.pack(index)[0].sample_id == 2)
    out, _ = run("inspect", packs, "--pack", number)
    assert out[:2] == [
        f"pack {number}: 50 of 70 tokens (71.4 %), 1 segments, 28 loss tokens",
        "── tokens 0 … 49 · sample 2 · 50 tokens, 28 loss",
    ]
    answer = "c" * 27
    assert "\n".join(out[2:]) == f"<|im_start|>user\n2?<|im_end|>\n<|im_start|>assistant\n⟦{answer}<|im_end|>⟧\n"


def test_inspect_shortens_long_texts_unless_asked(tokenizer: Path, tmp_path: Path) -> None:
    """Without it a pack of 128k tokens floods the terminal, or its middle can never be seen."""
    (tmp_path / "one.jsonl").write_text(json.dumps({"prompt": "?", "completion": "x" * 500}) + "\n")
    packs = tmp_path / "one"
    run("pack", tmp_path / "one.jsonl", "-o", packs, "--tokenizer", tokenizer, "--max-length", 1000, "--quiet")
    short = "\n".join(run("inspect", packs, "--pack", 0)[0])
    full = "\n".join(run("inspect", packs, "--pack", 0, "--full")[0])
    assert "… 450 tokens …" in short
    assert "x" * 500 not in short
    assert "x" * 500 in full


def test_inspect_shows_boundaries_where_the_tokenizer_is_gone(packs: Path, tmp_path: Path) -> None:
    """Without it a store that was copied to another machine cannot be looked into."""
    out, err = run("inspect", packs, "--pack", 0, "--tokenizer", tmp_path / "gone")
    assert out[0].startswith("pack 0: ")
    assert all(line.startswith("── tokens ") for line in out[1:])
    assert len(err) == 1
    assert str(tmp_path / "gone") in err[0]


# ── report ────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_report_shows_lengths_plan_and_other_capacities(packs: Path) -> None:
    """Without it nobody sees what a longer or shorter pack would give."""
    out, _ = run("report", packs)
    assert value(out, "lengths").startswith("6 samples, 218 tokens, ")
    classes = [line.split() for line in out if "…" in line]
    assert [(line[0], line[2], line[3]) for line in classes] == [("16", "31", "4"), ("32", "63", "2")]
    shares = [float(line[4]) for line in classes]
    assert shares == [49.5, 50.5]
    assert value(out, "packs").startswith("4 of 70 tokens, ")
    sweep = [line.split() for line in out[out.index("") :] if line.strip().startswith("1,024")]
    assert sweep == [["1,024", "1", "21.29", "%", "6.0", "0", "0.00", "%", "3.5", "%", "full"]]


def test_report_takes_a_table_a_plan_or_an_array(packs: Path, tmp_path: Path) -> None:
    """Without it only a whole pack store can be reported on."""
    np.save(tmp_path / "lengths.npy", np.array(LENGTHS))
    table, _ = run("report", packs / "lengths.arrow")
    array, _ = run("report", tmp_path / "lengths.npy")
    assert [line for line in table if not line.startswith(("source", "targets"))] == array
    assert any(line.strip().startswith("1,024") for line in array)
    plan, _ = run("report", packs / "plan.arrow")
    assert value(plan, "packs").startswith("4 of 70 tokens, ")


# ── help ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_help_and_version_answer() -> None:
    """Without it the first thing that anybody types fails."""
    import brimful

    out, _ = run("--help")
    for command in ("pack", "measure", "plan", "write", "inspect", "report"):
        assert any(line.strip().startswith(f"{command} ") for line in out)
        shown, _ = run(command, "--help")
        assert shown[0].startswith(f"Usage: brimful {command} ")
    out, _ = run("--version")
    assert brimful.__version__ in out[0]


def test_it_runs_as_a_module() -> None:
    """On many clusters the folder of scripts is not on the path, or belongs to another Python."""
    import brimful

    found = subprocess.run([sys.executable, "-m", "brimful", "--version"], capture_output=True, text=True, check=True)
    assert brimful.__version__ in found.stdout
    wrong = subprocess.run(
        [sys.executable, "-m", "brimful", "inspect", "gone"], capture_output=True, text=True, check=False
    )
    assert wrong.returncode == 2
    assert wrong.stderr.startswith("error: ")
