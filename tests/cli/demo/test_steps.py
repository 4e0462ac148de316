"""The demo is the first thing people run: it must be the same everywhere, and resume where it was stopped."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from brimful import open_packs
from brimful.cli.demo.steps import run_demo, run_multimodal_demo
from brimful.errors import MissingExtraError, SettingsError


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


@pytest.mark.long
def test_a_second_run_on_images_goes_on(tmp_path: Path) -> None:
    """Without it a demo that was stopped begins again, or cannot begin at all."""
    pytest.importorskip("PIL", reason="pictures need the extra brimful[media]")
    pytest.importorskip("soundfile", reason="sounds need the extra brimful[media]")
    lines: list[str] = []
    home = tmp_path / "demo"
    run_multimodal_demo(home, lines.append, num_chats=24, num_tones=4)
    text = "\n".join(lines)
    assert "$ brimful pack --config tones.yaml" in text
    assert "nothing to do: all was there" not in text
    assert {path.name for path in home.iterdir()} >= {"packs", "packs-of-tones", "packs.html", "tones.html"}
    assert len(open_packs(home / "packs")) > 3
    shards = {path: path.stat().st_mtime_ns for path in (home / "packs" / "shards").iterdir()}
    (home / "pictures" / "0000_0.png").unlink()
    again: list[str] = []
    run_multimodal_demo(home, again.append, num_chats=24, num_tones=4)
    assert "\n".join(again).count("nothing to do: all was there") == 2
    assert shards == {path: path.stat().st_mtime_ns for path in (home / "packs" / "shards").iterdir()}
    assert (home / "pictures" / "0000_0.png").exists()


@pytest.mark.parametrize("run", [run_demo, run_multimodal_demo])
def test_files_that_are_there_are_left_alone(run, tmp_path) -> None:
    """Without it a demo writes between the files of its user."""
    (tmp_path / "chats.jsonl").write_text("mine")
    with pytest.raises(SettingsError, match="has files already, and not of this demo"):
        run(tmp_path, print)
    assert (tmp_path / "chats.jsonl").read_text() == "mine"
    with pytest.raises(SettingsError, match="is a file"):
        run(tmp_path / "chats.jsonl", print)


def test_a_missing_package_is_one_line_with_the_way_out(tmp_path, monkeypatch, capsys) -> None:
    from brimful.cli import main

    found = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else found(name))
    with pytest.raises(MissingExtraError):
        run_demo(tmp_path / "demo", print)
    with pytest.raises(SystemExit) as stopped:
        main(["demo", "-o", str(tmp_path / "demo")])
    assert stopped.value.code == 2
    line = "error: brimful demo needs torch, which is not installed: pip install -e '.[text,torch]' in the checkout of brimful\n"
    assert capsys.readouterr().err == line
    assert not (tmp_path / "demo").exists()
