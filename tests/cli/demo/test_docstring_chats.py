"""Chats from docstrings: what the source says, the same everywhere."""

from __future__ import annotations

import email
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from brimful import open_source
from brimful.cli.demo.docstring_chats import make_chats
from brimful.errors import SourceNotFoundError

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
    code = "import json, sys; from brimful.cli.demo.docstring_chats import make_chats; print(json.dumps(make_chats(sys.argv[1])))"
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
