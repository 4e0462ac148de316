"""What others named and wrote reaches a terminal without a character that it obeys, and programs without a loss."""

from __future__ import annotations

import contextlib
import io
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brimful.cli import main

HOSTILE = "\x1b]52;c;aGk=\x07\x1b[2J\x08\x9b31m\x7f\u202eab\u2066c\u200f\u2028\rz"
"""Clipboard, screen, backspace, C1, deletion, directions of text, and a line that returns."""
RAW = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")


@pytest.fixture(scope="module")
def escape() -> Any:
    """The program's filter; its module sets a handler of signals when it is imported."""
    handler = signal.getsignal(signal.SIGINT)
    from brimful.__main__ import _escape

    signal.signal(signal.SIGINT, handler)
    return _escape


@pytest.fixture
def said(escape: Any) -> Any:
    """Exit code, output and errors of a command, as the program writes them: checked, and in UTF-8."""

    def run(*arguments: Any) -> tuple[int, str, str]:
        streams = [io.TextIOWrapper(io.BytesIO(), "utf-8", write_through=True) for _ in range(2)]
        for stream in streams:
            escape(stream)
        with (
            contextlib.redirect_stdout(streams[0]),
            contextlib.redirect_stderr(streams[1]),
            pytest.raises(SystemExit) as ended,
        ):
            main([str(argument) for argument in arguments])
        out, err = (stream.buffer.getvalue().decode("utf-8") for stream in streams)
        assert (RAW.search(out), RAW.search(err)) == (None, None), (arguments[0], out, err)
        return ended.value.code, out, err  # type: ignore[return-value]

    return run


def texts_in(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.items() for part in item for text in texts_in(part)]
    return [text for item in value for text in texts_in(item)] if isinstance(value, list) else [str(value)]


def test_every_command_with_hostile_names(said: Any, chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    """Names of the source, of the tokenizer, of outputs; texts of rows; settings of a store and of a configuration."""
    home = tmp_path / HOSTILE
    (home / "in").mkdir(parents=True)
    rows, words, packs, lengths = home / "in" / f"{HOSTILE}.jsonl", home / "tokenizer", home / "packs", home / "l.arrow"
    turns = [{"role": "user", "content": "\x1b[2J\x9b\u202e"}, {"role": "assistant", "content": "\x7f\u2066a"}]
    rows.write_text(json.dumps({"messages": turns}) + "\n" + chats.read_text())
    shutil.copytree(tokenizer, words)
    settings = ("--tokenizer", words, "--max-length", 400, "--num-proc", 1, "--cache-dir", home / "cache")
    config = home / "sft.yaml"
    config.write_text(
        json.dumps({"max_length": HOSTILE[:-2], "packing": True, "attn_implementation": HOSTILE[:-2], HOSTILE[:-2]: 1})
    )
    commands: list[tuple[Any, ...]] = [
        ("pack", rows, "-o", packs, *settings),
        ("measure", rows, "--tokenizer", words, "-o", lengths, "--cache-dir", home / "cache"),
        ("plan", lengths, "-o", home / "plan.arrow", "--max-length", 400),
        ("inspect", packs),
        ("inspect", packs, "--pack", 0, "--full"),
        ("inspect", packs, "--sample", 0),
        ("inspect", lengths),
        ("inspect", home / "plan.arrow"),
        ("report", packs, "-o", home / "a.html"),
        ("report", lengths),
        ("export", packs, "--to", "jsonl", "-o", home / "exported"),
        ("doctor", config),
        ("produce", home / "in", "-o", home / "stream", *settings[:4], "--close"),
        ("inspect", home / "stream"),
        ("verify", packs, "--model", home / "none"),
        ("pack", rows, "-o", packs, *settings[:2], "--max-length", 500),
        ("pack", home / "none.jsonl", "-o", packs, *settings),
        ("pack", rows, "-o", home / "b", *settings, "--chat-template", home / "none"),
        ("inspect", home / "none"),
        (HOSTILE,),
    ]
    succeeded = set()
    for command in commands:
        for as_json in (False, True):
            if as_json and command[0] == HOSTILE:
                continue
            code, out, err = said(*command, *(("--json",) if as_json else ()))
            assert code in (0, 2, 3), (command, out, err)
            lines = [*out.splitlines(), *err.splitlines()] if as_json else []
            found = [text for line in lines for text in texts_in(json.loads(line))]
            if as_json and code == 2 and command[0] != "doctor":
                assert any(HOSTILE[:14] in text for text in found), (command, found)
            if code in (0, 3):
                succeeded.add(command[:1])
    assert {name for (name,) in succeeded} >= {
        "pack",
        "measure",
        "plan",
        "inspect",
        "report",
        "export",
        "doctor",
        "produce",
    }


def test_a_name_in_json_is_the_name(said: Any, tmp_path: Path) -> None:
    """As escapes of JSON, what is hidden from a terminal is whole for a program."""
    name = "\x1b[2J\x9b\x7f\u202e\u2066\udcff.jsonl"
    _, _, err = said("inspect", tmp_path / name, "--json")
    assert name in json.loads(err)["message"]


def test_a_template_speaks_in_escapes(said: Any, chats: Path, tokenizer: Path, tmp_path: Path) -> None:
    template = tmp_path / "t.jinja"
    template.write_text("{{ raise_exception('\x1b]52;c;aGk=\x07\x9b\u202e no') }}")
    line = (
        "pack",
        chats,
        "-o",
        tmp_path / "o",
        "--tokenizer",
        tokenizer,
        "--max-length",
        70,
        "--chat-template",
        template,
    )
    for worker in (1, 2):
        code, _, err = said(*line, "--num-proc", worker)
        assert code == 2
        assert r"\u001b]52;c;aGk=\u0007\u009b\u202e no" in err


def test_the_program_escapes_its_lines_and_its_tracebacks() -> None:
    """Both streams of the process, also for an error that nothing explains."""
    for breaks in ("", "import brimful.cli.program as p; p.command_named = lambda name: 1 / 0 if name else 0\n"):
        code = f"import sys\nsys.argv = ['brimful', 'inspect', '\\x1b[2J\\x9b']\n{breaks}from brimful.__main__ import main\nmain()"
        if breaks:
            code = code.replace("1 / 0", "(_ for _ in ()).throw(RuntimeError('\\x1b[2J\\x9b'))")
        ended = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        text = ended.stderr.decode()
        assert ("Traceback" in text) == bool(breaks)
        assert r"\u001b[2J\u009b" in text
        assert not RAW.search(text)


def test_a_bar_on_a_terminal_still_moves(escape: Any) -> None:
    """Its returns stand at the ends of what it writes; in the middle they could hide a line."""
    ours, theirs = os.openpty()
    with open(theirs, "w") as terminal:
        escape(terminal)
        terminal.write("\rpack 50 %\r")
        terminal.write("a\rb\x1b")
        terminal.write("\n")
        terminal.flush()
        shown = b""
        while not shown.endswith(b"\n"):
            shown += os.read(ours, 100)
    assert shown.rstrip() == b"\rpack 50 %\ra\\u000db\\u001b"
    os.close(ours)
