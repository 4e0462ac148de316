"""One command in this process, what it must say, and the rows, files and damage that the tests of bad input share.

Everything runs through ``brimful.cli.main``, on a tokenizer of bytes made here, so that no test needs the shared data.
A turn costs its role, its content in bytes, and four tokens of markup::

    <|im_start|> r o l e \\n c o n t e n t <|im_end|> \\n
"""

import contextlib
import io
import json
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from brimful.cli import main

POLICIES = ("error", "drop", "truncate", "truncate_left", "split")

TEMPLATE = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


class Outcome(NamedTuple):
    code: Any
    out: str
    err: str

    @property
    def json(self) -> dict[str, Any]:
        """The result of a command with --json: its last line."""
        return json.loads(self.out.splitlines()[-1])


def run(*arguments: Any) -> Outcome:
    """One command in this process."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as exit_info:
        main([str(argument) for argument in arguments])
    return Outcome(exit_info.value.code, out.getvalue(), err.getvalue())


def done(*arguments: Any) -> Outcome:
    """A command that must succeed."""
    outcome = run(*arguments)
    assert outcome.code == 0, outcome.err
    return outcome


def refused(*arguments: Any) -> str:
    """A command that must fail as promised: its one line."""
    outcome = run(*arguments)
    return one_line(outcome.code, outcome.err)


def one_line(code: Any, err: str) -> str:
    lines = err.splitlines()
    assert code == 2, (code, err)
    assert "Traceback" not in err
    assert len(lines) == 1, err
    assert lines[0].startswith("error: "), err
    return lines[0]


def chat(question: str, answer: str) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def length_of(row: dict[str, Any]) -> int:
    return sum(len(turn["role"]) + len(turn["content"].encode()) + 4 for turn in row["messages"])


CHATS = [chat(f"question {number}", "a" * max(1, number)) for number in range(20)]


def write_rows(path: Path, rows: list[Any]) -> Path:
    """JSON lines; bytes are put in as they are."""
    lines = [row if isinstance(row, bytes) else json.dumps(row).encode() for row in rows]
    path.write_bytes(b"".join(line + b"\n" for line in lines))
    return path


def snapshot(directory: Path) -> dict[str, Any]:
    """What a store holds, without what differs between two runs on purpose: who wrote it, and how long it took."""
    found: dict[str, Any] = {}
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory).as_posix()
        if not path.is_file() or name.startswith("tmp/encoded/"):
            continue
        data: Any = path.read_bytes()
        if name.startswith("log/") or name == "summary.json":
            data = {k: v for k, v in json.loads(data).items() if k not in ("producer_id", "seconds", "directory")}
        found[name] = data
    return found


def temporary_files(directory: Path) -> list[str]:
    """Half-written files; the tokens that measuring leaves for writing are whole and stay for the next run."""
    found = [path for path in directory.rglob("*") if path.is_file()]
    return [str(path) for path in found if path.name.endswith(".tmp") or path.parent.name == "tmp"]


def flip(path: Path, at: int, bit: int = 1) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= bit
    path.write_bytes(data)


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
