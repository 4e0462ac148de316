"""One command in this process, what it must say, and the rows, files and damage that the tests of bad input share.

Everything runs through ``brimful.cli.main``, on a tokenizer of bytes made here, so that no test needs the shared data.
A turn costs its role, its content in bytes, and four tokens of markup::

    <|im_start|> r o l e \\n c o n t e n t <|im_end|> \\n
"""

import json
from pathlib import Path
from typing import Any

from tests.cli.tools import TEMPLATE as CHATML
from tests.cli.tools import Outcome
from tests.cli.tools import outcome as run

POLICIES = ("error", "drop", "truncate", "truncate_left", "split")

TEMPLATE = CHATML + "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"


def done(*arguments: Any) -> Outcome:
    """A command that must succeed."""
    result = run(*arguments)
    assert result.code == 0, result.err
    return result


def refused(*arguments: Any) -> str:
    """A command that must fail as promised: its one line."""
    result = run(*arguments)
    return one_line(result.code, result.err)


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
