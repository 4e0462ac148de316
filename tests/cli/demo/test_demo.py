"""The demo is the first thing users run: it must be the same everywhere, and resume from its stop."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from brimful import open_packs
from brimful.cli import demo
from brimful.cli.demo import run_demo
from brimful.errors import MissingExtraError, SettingsError
from tests.cli.tools import one_json, outcome


@pytest.mark.long
def test_a_short_demo_runs_end_to_end(tmp_path) -> None:
    transformers = pytest.importorskip("transformers")
    lines: list[str] = []
    summary = run_demo(tmp_path / "demo", lines.append, limit=300)
    text = "\n".join(lines)
    for command in (
        "$ brimful pack chats.jsonl -o packs --tokenizer tokenizer --max-length 2048 --overflow drop",
        "$ brimful report packs",
        "$ brimful inspect packs --pack ",
    ):
        assert command in text
    assert "fill           " in text, "the output of the commands belongs to the demo"
    assert summary == json.loads((tmp_path / "demo" / "packs" / "summary.json").read_text())

    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == [
        "cache",
        "chats.jsonl",
        "demo.json",
        "model",
        "packs",
        "tokenizer",
    ]
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "demo" / "model")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "demo" / "model")
    assert model.config.vocab_size == len(tokenizer)
    assert sum(path.stat().st_size for path in (tmp_path / "demo" / "model").iterdir()) < 2_000_000
    assert len(open_packs(tmp_path / "demo" / "packs")) > 3

    (tmp_path / "demo" / "my-packs").mkdir()
    again: list[str] = []
    run_demo(tmp_path / "demo", again.append, limit=300)
    assert "time           nothing to do: all was there" in again, "a demo that was stopped goes on"


def test_files_that_are_there_are_left_alone(tmp_path) -> None:
    """Without it a demo writes between the files of its user."""
    (tmp_path / "chats.jsonl").write_text("mine")
    with pytest.raises(SettingsError, match="has files already, and not of this demo"):
        run_demo(tmp_path, print)
    assert (tmp_path / "chats.jsonl").read_text() == "mine"


def test_a_missing_package_is_one_line_with_the_way_out(tmp_path, monkeypatch, capsys) -> None:
    from brimful.cli import main

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    with pytest.raises(MissingExtraError):
        run_demo(tmp_path / "demo", print)
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "-o", str(tmp_path / "demo")])
    assert stopped.value.code == 2
    line = "error: brimful demo needs torch, which is not installed: pip install 'brimful[text,torch]'\n"
    assert capsys.readouterr().err == line
    assert not (tmp_path / "demo").exists()


def test_the_demo_gives_its_summary_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it what the demo packed cannot be read by a program."""

    def quick(directory: str, say: Any, **options: Any) -> Any:
        say("a line for people")
        return {"packs": 3}

    monkeypatch.setattr(demo, "run_demo", quick)
    _, out, err = outcome("demo", "--json", "-o", tmp_path / "d")
    found = one_json(out)
    assert found == {"directory": str(tmp_path / "d"), "packs": 3}
    assert err.splitlines()[0] == "a line for people"
