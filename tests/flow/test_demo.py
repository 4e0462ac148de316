"""The demo is the first thing people run: it must be the same everywhere and end with a loss that went down."""

from __future__ import annotations

import email
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from brimful import open_packs, open_source
from brimful.demo import draw_comparison, make_chats, run_demo, train_tokenizer
from brimful.errors import MissingExtraError, SettingsError, SourceNotFoundError

SOURCE = '''"""Adds things."""

def add(a: int, b: int = 1, *, c=()) -> int:
    """Return the sum.

    Of both.
    """

def _hidden():
    """Nobody asks for this."""

def bare(): ...

class Box:
    """Holds one thing."""

    def __init__(self, thing): ...

    def get(self, /, default=None):
        """Return the thing."""

    @staticmethod
    def make(thing):
        """Make a box."""
'''


def test_chats_are_what_the_source_says(tmp_path) -> None:
    (tmp_path / "sums.py").write_text(SOURCE)
    for skipped in ("_private.py", "test/test_sums.py", "site-packages/other.py", "not-a-package/other.py"):
        (tmp_path / skipped).parent.mkdir(exist_ok=True)
        (tmp_path / skipped).write_text('"""Must not be read."""')
    (tmp_path / "broken.py").write_text("def (")
    turns = [[turn["content"] for turn in chat["messages"]] for chat in make_chats(tmp_path)]
    assert turns == [
        ["What is the module sums for?", "Adds things."],
        ["What does sums.add do?", "sums.add(a: int, b: int=1, *, c=()) -> int\n\nReturn the sum.\n\nOf both."],
        [
            "What is the class sums.Box for?",
            "sums.Box(thing)\n\nHolds one thing.",
            "And what does its method get do?",
            "get(default=None)\n\nReturn the thing.",
            "And what does its method make do?",
            "make(thing)\n\nMake a box.",
        ],
        ["How do I call sums.Box.get?", "Box.get(default=None)\n\nReturn the thing."],
        ["How do I call sums.Box.make?", "Box.make(thing)\n\nMake a box."],
    ]


def test_the_sources_are_read_and_never_run(tmp_path) -> None:
    (tmp_path / "loud.py").write_text('"""Loud."""\nraise SystemExit("imported")\n')
    assert len(make_chats(tmp_path)) == 1


def test_the_standard_library_gives_thousands_of_chats_of_very_different_lengths(stdlib_chats) -> None:
    chats = stdlib_chats
    characters = sorted(sum(len(turn["content"]) for turn in chat["messages"]) for chat in chats)
    assert len(chats) > 2000
    assert characters[-1] > 50 * characters[len(chats) // 2], "without a heavy tail, padding would look good"
    assert any(chat["messages"][0]["content"] == "What does json.dumps do?" for chat in chats)


def test_chats_are_the_same_in_another_process_and_taken_evenly() -> None:
    folder = str(Path(email.__file__).parent)
    chats = make_chats(folder)
    assert len(chats) > 100
    assert make_chats(folder, limit=10) == [chats[number * len(chats) // 10] for number in range(10)]
    code = "import json, sys; from brimful.demo import make_chats; print(json.dumps(make_chats(sys.argv[1])))"
    again = subprocess.run(
        [sys.executable, "-c", code, folder],
        env={**os.environ, "PYTHONHASHSEED": "7"},
        stdout=subprocess.PIPE,
        check=True,
    )
    assert json.loads(again.stdout) == chats, "another process must make the same chats in the same order"


def test_chats_are_a_source_of_the_format_messages(stdlib_chats) -> None:
    source = open_source(stdlib_chats)
    assert source.format_name == "messages"
    for sample in source.read(0, len(source)):
        roles = [message["role"] for message in sample.messages]
        assert roles == ["user", "assistant"] * (len(roles) // 2)
        assert all(message["content"].strip() for message in sample.messages)


def test_a_python_without_sources_is_named(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("sysconfig.get_path", lambda name: str(tmp_path))
    with pytest.raises(SourceNotFoundError, match=r"only 0 docstrings .* without its sources"):
        make_chats()


def test_the_tokenizer_gives_back_any_text_and_is_the_same_every_time(tmp_path, stdlib_chats) -> None:
    from transformers import AutoTokenizer

    texts = [turn["content"] for chat in stdlib_chats[::20] for turn in chat["messages"]]
    sizes = [train_tokenizer(texts, tmp_path / name, vocab_size=2000) for name in ("one", "two")]
    assert sizes == [2000, 2000]
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "one")
    for text in [*texts[:50], "ünï 漢字 🙂\r\n\t  x = [1,\n     2]  ", "<|im_star"]:
        assert tokenizer.decode(tokenizer(text)["input_ids"]) == text
    chat = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    rendered = tokenizer.apply_chat_template(chat, tokenize=False)
    assert rendered == "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n2<|im_end|>\n"
    asked = tokenizer.apply_chat_template(chat[:1], tokenize=False, add_generation_prompt=True)
    assert rendered.startswith(asked)
    marks = tokenizer.convert_tokens_to_ids(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])
    assert marks == [0, 1, 2], "a mark that is cut into pieces would be text to the model"


@pytest.mark.training
def test_a_short_demo_runs_end_to_end(tmp_path) -> None:
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

    assert sorted(path.name for path in (tmp_path / "demo").iterdir()) == ["cache", "chats.jsonl", "packs", "tokenizer"]
    assert len(open_packs(tmp_path / "demo" / "packs")) > 3


def test_files_that_are_there_are_left_alone(tmp_path) -> None:
    (tmp_path / "chats.jsonl").write_text("mine")
    with pytest.raises(SettingsError, match="there are files already"):
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
