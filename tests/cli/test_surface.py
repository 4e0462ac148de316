"""What the command line shows around its work: help in groups, JSON everywhere, and no dead ends."""

from __future__ import annotations

import contextlib
import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest
from click.shell_completion import get_completion_class

from brimful import PlanSettings, open_source, pack_dataset
from brimful.cli import _brimful, main
from brimful.testing.toys import toy_chat_encoder

COMMANDS = ("demo", "pack", "measure", "plan", "write", "verify", "inspect", "report")


def run(*arguments: Any) -> tuple[int, str, str]:
    """Exit code, standard output and standard error of a command."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return ended.value.code, out.getvalue(), err.getvalue()  # type: ignore[return-value]


def refused(*arguments: Any) -> str:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


def one_json(text: str) -> dict[str, Any]:
    assert text.count("\n") == 1
    found: dict[str, Any] = json.loads(text)
    return found


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """chats.jsonl and packs/: samples of 6, 12, 30 and 4 tokens at capacity 20, the long one dropped; row 3 malformed."""
    home = tmp_path_factory.mktemp("home")
    rows = [json.dumps({"text": "x" * length}) for length in (6, 12, 30)] + ["no json", json.dumps({"text": "xxxx"})]
    (home / "chats.jsonl").write_text("\n".join(rows) + "\n")
    source = open_source(home / "chats.jsonl", cache_dir=home / "cache")
    pack_dataset(
        source, toy_chat_encoder(), home / "packs", PlanSettings(capacity=20, overflow="drop"), on_bad_sample="skip",
        cache_dir=home / "cache",
    )  # fmt: skip
    return home


# ── help ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", COMMANDS)
def test_every_option_stands_in_a_group_once(name: str) -> None:
    """Without it forty options stand in one list, or one that somebody adds is not shown at all."""
    command = _brimful.get_command(click.Context(_brimful), name)
    assert command is not None
    _, shown, _ = run(name, "--help")
    groups = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert groups[-1] == "Other:"
    assert len(groups) == len(set(groups))
    assert "Options:" not in groups
    assert shown.split("Other:")[1].split() == ["-h,", "--help", "Show", "this", "message", "and", "exit."]
    options = [each for each in command.params if isinstance(each, click.Option) and not each.hidden]
    lines = [line.strip().split("  ")[0] for line in shown.splitlines() if line.startswith("  -")]
    assert len(lines) == len(options) + 1  # and --help


def test_the_groups_of_pack_in_the_order_of_the_flow() -> None:
    """Without it the way from rows to packs is not to be seen in the help."""
    _, shown, _ = run("pack", "--help")
    groups = [line for line in shown.splitlines() if line.endswith(":") and not line.startswith(" ")]
    assert groups == ["Source:", "Encoding:", "Packing:", "Alignment:", "Output:", "Job:", "Other:"]


@pytest.mark.parametrize("width", [60, 80])
@pytest.mark.parametrize("name", [None, *COMMANDS])
def test_help_fits_narrow_terminals(name: str | None, width: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it lines of the help are broken by the terminal in the middle of words."""
    monkeypatch.setenv("COLUMNS", str(width))
    _, shown, _ = run(*([name] if name else []), "--help")
    assert [line for line in shown.splitlines() if len(line) > width and " " in line.strip()] == []


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_of_every_shell_is_documented(shell: str) -> None:
    """Without it the line of the docs prints nothing, or the name of its variable has changed."""
    docs = (Path(__file__).parents[2] / "docs" / "quickstart.md").read_text()
    assert f"_BRIMFUL_COMPLETE={shell}_source brimful" in docs
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind.source_template % kind(_brimful, {}, "brimful", "_BRIMFUL_COMPLETE").source_vars()
    assert f"_BRIMFUL_COMPLETE={shell}_complete" in script


def test_completion_answers() -> None:
    """Without it the shell is told how to ask, and gets no answer."""
    environment = {**os.environ, "COMP_WORDS": "brimful pack --max-l", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-m", "brimful"], env={**environment, "_BRIMFUL_COMPLETE": "bash_complete"},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.stdout == "plain,--max-length\n"


# ── dead ends ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_mistyped_command_names_the_nearest(home: Path) -> None:
    """Without it "No such command" is all there is to go on."""
    assert refused("pakc", "x") == "no command 'pakc': did you mean pack?"
    assert refused("zzz") == f"no command 'zzz': use one of {', '.join(COMMANDS)}"
    path = home / "chats.jsonl"
    assert refused(path).startswith(f"no command '{path}': to pack data say `brimful pack {path} …`")


def test_what_brimful_wrote_is_no_data(home: Path, tmp_path: Path) -> None:
    """Without it a plan is read as text, and refused for bytes that are no UTF-8."""
    lengths, plan, packs = (home / "packs" / "lengths.arrow", home / "packs" / "plan.arrow", home / "packs")
    for command in (["measure"], ["pack", "-o", tmp_path / "p", "--max-length", 8]):
        assert refused(*command, plan) == f"{plan} is a plan and no data: `brimful write` takes it"
        assert refused(*command, lengths) == f"{lengths} is a length table and no data: `brimful plan` takes it"
        assert refused(*command, packs) == f"{packs} is a pack store and no data: `brimful inspect` takes it"
    assert refused("plan", plan, "--max-length", 8).startswith(f"{plan} is a plan already: `brimful inspect` shows it")
    assert refused("write", lengths, home / "chats.jsonl", "-o", tmp_path / "p").startswith(
        f"{lengths} is a length table and no plan: "
    )
    assert refused("write", home / "chats.jsonl", plan, "-o", tmp_path / "p").startswith(
        f"{home / 'chats.jsonl'} is no plan: "
    )


def test_plan_takes_the_lengths_of_a_pack_store(home: Path) -> None:
    """Without it the lengths beside the packs have to be known by their file name."""
    _, out, _ = run("plan", home / "packs", "--max-length", 30, "--json")
    assert one_json(out)["samples_packed"] == 4


def test_a_report_on_data_names_the_command_that_measures_it(home: Path) -> None:
    """Without it nobody knows that lengths come first."""
    path = home / "chats.jsonl"
    assert refused("report", path).endswith(
        f"data is measured first: `brimful measure {path} -o lengths.arrow --tokenizer DIR|ID`"
    )
    assert refused("report", home / "gone") == f"{home / 'gone'}: no such file or directory"


# ── JSON ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_inspect_gives_json_of_all_that_it_shows(home: Path) -> None:
    """Without it scripts read tables meant for people."""
    packs = home / "packs"
    store = one_json(run("inspect", packs, "--json")[1])
    assert (store["kind"], store["num_packs"], store["samples_dropped"], store["capacity"]) == ("store", 2, 1, 20)
    plan = one_json(run("inspect", packs / "plan.arrow", "--json")[1])
    assert (plan["kind"], plan["num_packs"], plan["tokens_in"]) == ("plan", 2, 52)
    table = one_json(run("inspect", packs / "lengths.arrow", "--json")[1])
    assert (table["kind"], table["samples"], table["tokens"], table["rejected"]) == ("length_table", 5, 52, 1)
    planned = one_json(run("inspect", packs / "plan.arrow", "--pack", 0, "--json")[1])
    written = one_json(run("inspect", packs, "--pack", 0, "--json")[1])
    assert planned["kind"] == written["kind"] == "pack"
    assert [s["sample_id"] for s in planned["segments"]] == [s["sample_id"] for s in written["segments"]]
    assert sum(segment["tokens"] for segment in written["segments"]) == written["tokens"]
    checked = one_json(run("inspect", packs, "--check", "--json")[1])
    assert checked["checked"] == {"shards": 1, "packs": 2, "tokens": 22, "samples": 3, "against": "log and plan"}


def test_errors_are_json_where_results_are(home: Path) -> None:
    """Without it a script that asks for JSON gets words when something is wrong."""
    for arguments, kind in (
        (["plan", home / "packs", "--json", "--max-length", 0], "SettingsError"),
        (["inspect", home / "gone", "--json"], "SourceNotFoundError"),
        (["pack", "--json"], "MissingParameter"),
        (["pakc", "--json"], "UsageError"),
    ):
        code, out, err = run(*arguments)
        assert (code, out) == (2, "")
        event = one_json(err)
        assert (event["event"], event["error"]) == ("error", kind)
        assert "\n" not in event["message"]
    row = home / "bad.jsonl"
    row.write_text('{"input_ids": [1, 2]}\nno json\n')
    event = json.loads(run("measure", row, "--json")[2].splitlines()[-1])
    assert (event["error"], event["sample_id"], event["where"]) == ("BadSampleError", 1, f"{row}:2")


def test_the_demo_gives_its_comparison_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it what the demo measured can only be read by people."""
    demo = pytest.importorskip("brimful.demo")
    runs = (demo.TrainingRun("packed", [2.0, 1.0], 90, 100, 1.0), demo.TrainingRun("padded", [2.0, 1.0], 90, 180, 3.0))

    def quick(directory: str, say: Any, **options: Any) -> Any:
        say("a line for people")
        return runs

    monkeypatch.setattr(demo, "run_demo", quick)
    _, out, err = run("demo", "--json", "-o", tmp_path / "d")
    found = one_json(out)
    assert (found["directory"], found["packed"]["fill_ratio"], found["padded"]["tokens_per_second"]) == (
        str(tmp_path / "d"),
        0.9,
        30.0,
    )
    assert err.splitlines()[0] == "a line for people"


# ── one sample ────────────────────────────────────────────────────────────────────────────────────────────────────


def test_inspect_finds_a_sample(home: Path) -> None:
    """Without it nobody can tell which pack holds sample 4, or why none holds sample 2."""
    packs, rows = home / "packs", home / "chats.jsonl"
    found = [run("inspect", packs, "--sample", number)[1].splitlines() for number in range(5)]
    assert [lines[0] for lines in found] == [f"sample         {number} at {rows}:{number + 1}" for number in range(5)]
    assert found[2][2] == "dropped        longer than a pack (20 tokens)"
    assert found[3][1].startswith("rejected       no JSON")
    place = one_json(run("inspect", packs, "--sample", 4, "--json")[1])["places"][0]
    assert found[4][2] == f"packed         pack {place['pack']}, tokens {place['first']} … {place['first'] + 3}"
    segments = one_json(run("inspect", packs, "--pack", place["pack"], "--json")[1])["segments"]
    assert {"sample_id": 4, "first": place["first"]}.items() <= next(s for s in segments if s["sample_id"] == 4).items()
    assert run("inspect", packs / "plan.arrow", "--sample", 4)[1].splitlines() == found[4]
    assert run("inspect", packs / "lengths.arrow", "--sample", 2)[1].splitlines() == found[2][:2]


def test_inspect_refuses_what_it_cannot_show(home: Path) -> None:
    """Without it one of two wishes is dropped in silence."""
    assert refused("inspect", home / "packs", "--sample", 5) == "--sample 5: there are samples 0 … 4"
    assert (
        refused("inspect", home / "packs", "--sample", 1, "--pack", 0)
        == "--pack and --sample show two things: leave one out"
    )


def test_control_characters_of_the_data_do_not_reach_the_terminal(tmp_path: Path) -> None:
    """Without it a row of the data can clear the screen, or write its title."""
    from brimful.report.text.pack import show_pack
    from brimful.testing.toys import toy_pack

    lines = show_pack(toy_pack([3]), 0, 8, lambda ids: "a\x1b[2J\x9b\tb\n")
    assert "a\\x1b[2J\\x9b\tb\n" in "\n".join(lines)
    assert "\x1b" not in "\n".join(lines)
