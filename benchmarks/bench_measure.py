"""Measuring exact lengths of chats against the bare ``tokenizers`` library on the same rendered strings.

Ours is ``measure_lengths`` as a user calls it: reads and parses the file, checks the rows, renders the chat template,
tokenises, writes the length table and its cache; in a fresh cache directory each time, so that nothing is known. Only
the line index of the file is there already. Where the data set is large enough, it starts its own worker processes,
and their start is in the time. Once for lengths alone (``targets=False``), which the aim is about, and once as it is by
default, with the places of the targets of the loss.

The peers get the strings that the template made, in one list, and do nothing but tokenise: ``encode_batch`` (the aim:
at least 0.8 of its tokens a second) and ``encode_batch_fast``, which leaves out the character offsets. Both use all
cores through their own threads. The second peer is the three bare parts that no measuring can do without, one behind the
other for all rows, by the fastest library of each that the job itself uses: ``orjson`` on the lines, Jinja with the
template compiled, ``encode_batch_flat`` of ``fastokens``. Here ours runs in one process as well (the aim: half as fast; what
lies between is checking of rows, places of targets, comparison with the reference, and files).

Data: gsm8k (short), sgd (long, tool calls) and smile (Chinese), with the Qwen2.5 tokenizer; docstrings of the standard
library with a tokenizer trained on them where the shared data is absent.
"""

from __future__ import annotations

import gzip
import itertools
import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from compare import SHARED_DATA, Row, in_turn, main_of

from brimful.encode import ChatEncoder
from brimful.measure import measure_lengths
from brimful.sources import open_source

__all__ = ["measure"]

_NAMES = ("gsm8k_train", "sgd_train_dialogues", "smile_zh_multiturn_3k")
_QUICK_ROWS = 600


def measure(quick: bool) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder)
        tokenizer, files = _data(home, quick)
        return [
            row
            for name, path in files.items()
            for row in _compare(name, path, tokenizer, home, quick)
        ]


def _data(home: Path, quick: bool) -> tuple[str, dict[str, Path]]:
    """A tokenizer and files of chats; only the first rows if quick."""
    tokenizer = SHARED_DATA / "tokenizers" / "qwen2.5"
    files = {name: SHARED_DATA / "text" / f"{name}.jsonl.gz" for name in _NAMES}
    if tokenizer.is_dir() and all(path.is_file() for path in files.values()):
        if quick:
            for name, path in files.items():
                rows = open_source(str(path), cache_dir=home / "indexes").rows
                files[name] = _written(
                    home / f"{name}.jsonl", rows.read(0, min(_QUICK_ROWS, len(rows)))
                )
        return str(tokenizer), files
    from brimful.cli.demo.docstring_chats import make_chats
    from brimful.cli.demo.toy_model import train_tokenizer

    chats = make_chats(limit=_QUICK_ROWS if quick else None)
    texts = (turn["content"] for chat in chats for turn in chat["messages"])
    train_tokenizer(texts, home / "tokenizer")
    return str(home / "tokenizer"), {"stdlib docstrings": _written(home / "demo.jsonl", chats)}


def _written(path: Path, rows: object) -> Path:
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)  # type: ignore[attr-defined]
    return path


def _compare(name: str, path: Path, tokenizer: str, home: Path, quick: bool) -> list[Row]:
    source = open_source(str(path), cache_dir=home / "indexes")
    encoder = ChatEncoder(tokenizer)
    texts = [encoder.render(source[index]) for index in range(len(source))]  # type: ignore[arg-type]
    bare = _bare_parts(path, encoder, texts)
    backend = ChatEncoder(tokenizer).tokenizer.backend
    tokens = sum(map(len, backend.encode_batch_fast(texts, add_special_tokens=False)))
    fresh = itertools.count()

    def ours(targets: bool, num_proc: int | None = None) -> None:
        cache = home / f"cache{next(fresh)}"
        table = measure_lengths(
            source, encoder, targets=targets, cache_dir=cache, num_proc=num_proc
        )
        assert table.total_tokens == tokens, "not the same tokens"

    seconds = in_turn(
        {
            "lengths": lambda: ours(False),
            "targets": lambda: ours(True),
            "lengths in one process": lambda: ours(False, 1),
            "targets in one process": lambda: ours(True, 1),
            "bare parts": bare,
            "encode_batch": lambda: backend.encode_batch(texts, add_special_tokens=False),
            "encode_batch_fast": lambda: backend.encode_batch_fast(texts, add_special_tokens=False),
        },
        repetitions=1 if quick else 5,
    )
    for cache in home.glob("cache*"):
        shutil.rmtree(cache)
    title = f"measure {name}, {len(source):,} chats, {tokens:,} tokens"
    return [
        Row(
            f"{title}{what}",
            "tokens/s",
            tokens / seconds[name],
            peer_name,
            tokens / seconds[peer],
            aim=aim,
        )
        for name, what, peer, peer_name, aim in (
            ("lengths", "", "encode_batch", "tokenizers encode_batch", 0.8),
            ("lengths", "", "encode_batch_fast", "tokenizers encode_batch_fast", None),
            ("targets", ", with targets", "encode_batch", "tokenizers encode_batch", None),
            (
                "lengths in one process",
                ", one process",
                "bare parts",
                "orjson, Jinja, fastokens",
                0.5,
            ),
            (
                "targets in one process",
                ", with targets, one process",
                "bare parts",
                "orjson, Jinja, fastokens",
                0.5,
            ),
        )
    ]


def _bare_parts(path: Path, encoder: ChatEncoder, texts: list[str]) -> Callable[[], None]:
    """Return what parses every line of a file, renders every row and tokenises all texts, and nothing else."""
    import orjson
    from fastokens._native import Tokenizer as FastTokenizer

    from brimful.encode.jinja_templates import compile_template

    opened = gzip.open if path.suffix == ".gz" else open
    with opened(path, "rb") as file:
        lines = file.read().splitlines()
    tokenizer = encoder.tokenizer
    template = compile_template(tokenizer.hf.chat_template)
    fast = FastTokenizer.from_json_str(tokenizer.backend.to_str())

    def run() -> None:
        rows = [orjson.loads(line) for line in lines]
        rendered = [
            template.render(messages=_messages(row), tools=row.get("tools")) for row in rows
        ]
        fast.encode_batch_flat(rendered, add_special_tokens=False)

    rows = map(orjson.loads, lines[:100])
    rendered = [template.render(messages=_messages(row), tools=row.get("tools")) for row in rows]
    assert rendered == texts[:100], "other texts"
    return run


def _messages(row: dict[str, Any]) -> list[dict[str, str]]:
    if "messages" in row:
        return row["messages"]  # type: ignore[no-any-return]
    return [
        {"role": "user", "content": row["question"]},
        {"role": "assistant", "content": row["answer"]},
    ]


if __name__ == "__main__":
    main_of(measure, __doc__)
