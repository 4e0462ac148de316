"""The entrance of the command line: help, completion, mistyped commands, and errors for people and for machines."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import get_completion_class

from brimful.cli.program import _brimful
from tests.cli.tools import one_json, outcome, refused, run

COMMANDS = ("demo", "pack", "measure", "plan", "write", "produce", "export", "verify", "doctor", "inspect", "report")


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


def test_a_mistyped_command_names_the_nearest(home: Path) -> None:
    """Without it "No such command" is the only help."""
    assert refused("pakc", "x") == "no command 'pakc': did you mean pack?"
    assert refused("zzz") == f"no command 'zzz': use one of {', '.join(COMMANDS)}"
    path = home / "chats.jsonl"
    assert refused(path).startswith(f"no command '{path}': to pack data use `brimful pack {path} …`")


def test_errors_are_json_where_results_are(home: Path) -> None:
    """Without it a script that asks for JSON gets words when something is wrong."""
    for arguments, kind in (
        (["plan", home / "packs", "--json", "--max-length", 0], "SettingsError"),
        (["inspect", home / "gone", "--json"], "SourceNotFoundError"),
        (["pack", "--json"], "MissingParameter"),
        (["pakc", "--json"], "UsageError"),
    ):
        code, out, err = outcome(*arguments)
        assert (code, out) == (2, "")
        event = one_json(err)
        assert (event["event"], event["error"]) == ("error", kind)
        assert "\n" not in event["message"]
    row = home / "bad.jsonl"
    row.write_text('{"input_ids": [1, 2]}\nno json\n')
    event = json.loads(outcome("measure", row, "--json")[2].splitlines()[-1])
    assert (event["error"], event["sample_id"], event["where"]) == ("BadSampleError", 1, f"{row}:2")


def test_a_working_directory_that_is_gone_is_named(tmp_path, monkeypatch):
    folder = tmp_path / "gone"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PWD", str(folder))
    folder.rmdir()
    assert refused("demo", "-o", "demo") == f"{folder}: No such file or directory"
