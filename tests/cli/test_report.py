"""``brimful report``: what it prints, writes and refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest

from brimful import LengthTable, open_source, plan_packs, write_packs
from brimful.lengths.targets import Targets
from brimful.testing.toys import toy_chat_encoder
from tests.cli.conftest import EIGHT_POINT_FOUR
from tests.cli.tools import LENGTHS, refused, run, shown, value


@pytest.fixture
def plan_file(tmp_path):
    plan_packs(EIGHT_POINT_FOUR, capacity=100, algorithm="next_fit").save(tmp_path / "some.plan")
    return tmp_path / "some.plan"


@pytest.fixture
def store(tmp_path):
    """A pack store with its plan and without a length table."""
    source = open_source([{"question": "1?", "answer": "abc" * number} for number in range(1, 9)])
    encoder = toy_chat_encoder()
    lengths = LengthTable.from_lengths([len(encoder.encode(source[at]).input_ids) for at in range(8)])
    plan = plan_packs(lengths, capacity=80)
    write_packs(plan, source, encoder, tmp_path / "packs", num_proc=1)
    plan.save(tmp_path / "packs" / "plan.arrow")
    return tmp_path / "packs"


RUN = ("--world-size", 8, "--gradient-accumulation-steps", 4)


def test_the_advice_stands_in_the_terminal(plan_file):
    """A plan alone is enough for it."""
    out = shown("report", plan_file, *RUN, "--learning-rate", 1e-4, "--warmup-steps", 100)
    assert "samples/step   269, was 32 unpacked -> accumulation 4 → 1 gives 67" in out
    assert "steps/epoch    5, was 42 unpacked -> accumulation 1 gives 20" in out
    rows = [line.split() for line in out if line.strip().startswith("1 × ")]
    assert [row[:5] for row in rows] == [
        ["1", "×", "1", "67", "2.10"], ["1", "×", "4", "269", "8.40"],
    ]  # fmt: skip
    assert [row[9] for row in rows] == ["48", "12"]
    text = "\n".join(out)
    assert "Goyal et al., 2017" in text
    heads, seeded, balanced = out[out.index("slowest rank ÷ mean rank, qwen3-8b") + 1 :][:3]
    assert heads.split()[:5] == ["order", "of", "packs", "mean", "wait"]
    assert [seeded.split()[:3], balanced.split()[:3]] == [["in", "seeded", "order"], ["balanced", "by", "cost"]]
    assert 1 <= float(balanced.split()[3]) <= float(seeded.split()[3]) < 1.1


def test_lengths_are_planned_for_a_report_if_asked(array):
    """Without it the advice needs a plan to be saved first."""
    assert not any(line.startswith("samples/step") for line in shown("report", array))
    out = shown("report", array, "--max-length", 100, *RUN)
    assert any(line.startswith("samples/step   2") for line in out)
    heads = next(line for line in out if line.strip().startswith("capacity"))
    assert heads.split()[-1] == "steps/epoch"


def test_the_page_and_the_json_hold_the_same_numbers(array, tmp_path):
    page = tmp_path / "report.html"
    (line,) = shown("report", array, "--max-length", 100, *RUN, "-o", page, "--json")
    data = json.loads(line)
    text = page.read_text()
    inside = json.loads(text.split('id="report-data">')[1].split("</script>")[0])
    assert inside == {key: value for key, value in data.items() if key != "page"}
    assert data["page"] == str(page)
    assert data["run"]["model"] == "qwen3-8b"
    assert data["advice"]["unpacked"]["samples"] == 32
    out = shown("report", array, "-o", page)
    assert out[-1] == f"page           {page}"


def test_a_store_whose_plan_is_beside_it_needs_no_table(store, tmp_path):
    page = tmp_path / "store.html"
    out = shown("report", store, "-o", page, "--world-size", 2)
    assert any(line.startswith("packs          ") for line in out)
    assert "<h1>packs</h1>" in page.read_text()


def test_parts_of_different_jobs_are_refused(store, tmp_path):
    """Without it a report adds up numbers of two data sets."""
    LengthTable.from_lengths([1, 2]).save(store / "lengths.arrow")
    assert "plan.arrow was made from lengths" in refused("report", store)
    (store / "lengths.arrow").unlink()
    plan_packs([3, 4], capacity=40).save(store / "plan.arrow")
    assert "its packs were written from plan" in refused("report", store)


def test_sources_are_counted_before_and_after(tmp_path):
    np.save(tmp_path / "l.npy", np.array([2, 3, 90, 4]))
    np.save(tmp_path / "s.npy", np.array([0, 0, 1, 1]))
    options = ("--sources", tmp_path / "s.npy", "--source-name", "chats", "--source-name", "books")
    out = shown("report", tmp_path / "l.npy", "--max-length", 10, "--overflow", "drop", *options)
    begin = next(i for i, line in enumerate(out) if line.startswith("Sources: ")) + 1
    heads, *rows = (re.split(r" {2,}", line.strip()) for line in out[begin : begin + 3])
    assert (heads[2], heads[5], heads[6]) == ("of samples", "of tokens", "of packed tokens")
    assert [(row[0], row[5], row[6]) for row in rows] == [
        ("chats", "5.1 %", "55.6 %"), ("books", "94.9 %", "44.4 %"),
    ]  # fmt: skip


def test_samples_without_a_target_are_left_out(tmp_path):
    """The option that the error offers is one of the command."""
    lengths = np.array([3, 1, 5], dtype=np.int32)  # one token has none before it that could predict it
    LengthTable({"tokens": lengths}, targets=Targets.of_all_tokens(lengths)).save(tmp_path / "l.arrow")
    assert "--no-target drop" in refused("report", tmp_path / "l.arrow", "--max-length", 10)
    out = shown("report", tmp_path / "l.arrow", "--max-length", 10, "--no-target", "drop")
    assert value(out, "samples/pack").startswith("2.0 on average")


def test_costs_may_be_those_of_a_config(array, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({
        "hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 0,
    }))  # fmt: skip
    (line,) = shown("report", array, "--max-length", 100, "--model-config", config, "--json")
    assert json.loads(line)["run"]["crossover_length"] == 640


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (["--world-size", 0], "--world-size must be at least 1 and is 0"),
        (["--micro-batch-size", -3], "--micro-batch-size must be at least 1 and is -3"),
        (["--gradient-accumulation-steps", 0], "--gradient-accumulation-steps"),
        (["--packs-per-micro-batch", 0], "--packs-per-micro-batch"),
        (["--max-length", 100, "--learning-rate", -1], "--learning-rate"),
        (["--warmup-steps", -1], "--warmup-steps"),
        (["--model-type", "gpt-9"], "--model-type gpt-9 is unknown"),
        (["--model-type", "qwen3-8b", "--model-config", "c.json"], "two models"),
        (["--model-config", "nowhere.json"], "nowhere.json: no such file"),
        (["-o", "report.pdf"], "must end in .html"),
        (["--max-length", 5], "--overflow drop"),
        (["--source-name", "a"], "add --sources"),
        (["--sources", "nowhere.npy"], "nowhere.npy: no such file"),
    ],
)
def test_bad_options_are_one_line(array, options, named):
    assert named in refused("report", array, *options)


def test_files_of_others_are_not_overwritten(array, tmp_path):
    page = tmp_path / "mine.html"
    page.write_text("mine")
    assert "exists and is not a report" in refused("report", array, "-o", page)
    assert page.read_text() == "mine"
    (tmp_path / "d.html").mkdir()
    assert "is a directory where a file should be" in refused("report", array, "-o", tmp_path / "d.html")


def test_a_plan_cannot_be_planned_anew_without_lengths(plan_file):
    assert "--max-length plans lengths" in refused("report", plan_file, "--max-length", 50)
    assert "no length table" in refused("report", plan_file, "--sources", "s.npy")


def test_report_shows_lengths_plan_and_other_capacities(packs: Path) -> None:
    """Without it users do not see what a longer or shorter pack would give."""
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


def test_a_report_on_data_names_the_command_that_measures_it(home: Path) -> None:
    """Without it users do not know that lengths come first."""
    path = home / "chats.jsonl"
    assert refused("report", path).endswith(
        f"data is measured first: `brimful measure {path} -o lengths.arrow --tokenizer DIR|ID`"
    )
    assert refused("report", home / "gone") == f"{home / 'gone'}: no such file or directory"
