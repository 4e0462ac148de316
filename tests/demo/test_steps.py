"""The demo is the first thing people run: it must be the same everywhere and end with a loss that went down."""

from __future__ import annotations

import importlib.util

import pytest

from brimful import open_packs
from brimful.demo import draw_comparison, run_demo
from brimful.errors import MissingExtraError, SettingsError


@pytest.mark.long
def test_a_short_demo_runs_end_to_end(tmp_path) -> None:
    transformers = pytest.importorskip("transformers")
    lines: list[str] = []
    packed, padded = run_demo(tmp_path / "demo", lines.append, limit=300, steps=3)
    text = "\n".join(lines)
    for command in (
        "$ brimful pack chats.jsonl -o packs --tokenizer tokenizer --max-length 2048 --overflow drop",
        "$ brimful report packs",
        "$ brimful inspect packs --pack ",
    ):
        assert command in text
    assert "fill           " in text, "the output of the commands belongs to the demo"
    assert draw_comparison(packed, padded)[-1] in lines

    assert len(packed.losses) == 3
    assert packed.losses[-1] < packed.losses[0] - 0.1
    assert packed.losses == pytest.approx(padded.losses, abs=1e-4), "samples of a pack must not see each other"
    assert packed.real_tokens == padded.real_tokens
    assert packed.fill_ratio == 1.0
    assert padded.fill_ratio < 0.9

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
    run_demo(tmp_path / "demo", again.append, limit=300, steps=1)
    assert "time           nothing to do: all was there" in again, "a demo that was stopped goes on"


def test_files_that_are_there_are_left_alone(tmp_path) -> None:
    (tmp_path / "chats.jsonl").write_text("mine")
    with pytest.raises(SettingsError, match="has files already"):
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
    line = "error: brimful demo needs torch, which is not installed: pip install -e '.[text,torch]' in the checkout of brimful\n"
    assert capsys.readouterr().err == line
    assert not (tmp_path / "demo").exists()
