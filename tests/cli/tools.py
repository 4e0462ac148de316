"""One command in this process, and its result as people and machines read it."""

import contextlib
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from brimful.cli import main

TEMPLATE = "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"


class Outcome(NamedTuple):
    """Exit code, standard output and standard error of a command."""

    code: Any
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The result of a command with --json: its last line."""
        return json.loads(self.out.splitlines()[-1])


def outcome(*arguments: Any) -> Outcome:
    """Run a command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    return Outcome(ended.value.code, out.getvalue(), err.getvalue())


def run(*arguments: Any) -> tuple[list[str], list[str]]:
    """The lines that a command prints, on standard output and on standard error; it must succeed."""
    code, out, err = outcome(*arguments)
    assert code == 0, err
    return out.splitlines(), err.splitlines()


def shown(*arguments: Any) -> list[str]:
    """The lines of a command that must succeed, on standard output."""
    return run(*arguments)[0]


def refused(*arguments: Any) -> str:
    """The one line of an error that is explained."""
    code, out, err = outcome(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    return err.removeprefix("error: ").rstrip("\n")


LENGTHS = [30, 30, 50, 60, 24, 24]
"""Packs at capacity 70, best fit decreasing: 60 · 50 · 30 30 · 24 24, of 280 tokens."""


def rendered(number: int) -> str:
    question, answer = f"{number}?", chr(ord("a") + number) * (LENGTHS[number] - 23)
    return f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"


def result_of(*arguments: Any) -> dict[str, Any]:
    """What a command with --json prints: one line, and lines of JSON on standard error."""
    out, err = run(*arguments, "--json")
    assert len(out) == 1
    for line in err:
        assert json.loads(line)["event"] in ("progress", "message")
    return json.loads(out[0])


def value(lines: list[str], name: str) -> str:
    """What follows a name at the beginning of a line."""
    found = [line for line in lines if line.startswith(f"{name:<15}")]
    assert len(found) == 1, (name, lines)
    return found[0][15:]


def one_json(text: str) -> dict[str, Any]:
    assert text.count("\n") == 1
    found: dict[str, Any] = json.loads(text)
    return found


def save_tokenizer(directory: Path, template: str | None) -> Path:
    """One token a byte, ChatML's special tokens, as ``transformers`` saves it."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: number for number, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    PreTrainedTokenizerFast(
        tokenizer_object=backend,
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        chat_template=template,
    ).save_pretrained(directory)
    return directory
