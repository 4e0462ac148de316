"""Samples encoded while a model trains, beside ``apply_chat_template`` on the same conversations, one by one.

Ours is packs of a plan (``PackedDataset.from_plan``) and micro-batches by a token budget (``TokenBudgetBatches``), each row
read from its file, encoded with the places of its targets, and packed; all lengths are measured before. The peer is what
a data set of Transformers does in ``__getitem__``: ``apply_chat_template(messages, tokenize=True)`` for one conversation
that is in memory already, with neither targets nor packs.

Each uses this process alone, as a worker of a loader does. Everything is loaded before, and the fast library compared
with its reference.

Data: chats of some 17 turns and 350 tokens (sgd), and of two (gsm8k), with the Qwen2.5 tokenizer.
"""

from __future__ import annotations

import gzip
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from compare import SHARED_DATA, Row, in_turn, main_of

from brimful import (
    ChatEncoder,
    PackedDataset,
    TokenBudgetBatches,
    measure_lengths,
    open_source,
    plan_packs,
)
from brimful.dynamic import TokenBudget
from brimful.encode import EncodedSamples

__all__ = ["measure"]

_NAMES = ("sgd_train_dialogues", "gsm8k_train")
_ROWS, _QUICK_ROWS = 4000, 300
_TOKENS = 4096
"""Tokens of a pack and of a micro-batch."""


def measure(quick: bool) -> list[Row]:
    tokenizer = SHARED_DATA / "tokenizers" / "qwen2.5"
    if not tokenizer.is_dir():
        print("no real data: nothing measured", file=sys.stderr)
        return []
    with tempfile.TemporaryDirectory() as folder:
        return [row for name in _NAMES for row in _compare(name, tokenizer, Path(folder), quick)]


def _chats(name: str, count: int) -> list[list[dict[str, str]]]:
    """The first conversations of a file, with the turns of text alone."""
    chats = []
    with gzip.open(SHARED_DATA / "text" / f"{name}.jsonl.gz", "rt", encoding="utf-8") as file:
        for _, line in zip(range(count), file, strict=False):
            row = json.loads(line)
            turns: list[dict[str, Any]] = row.get("messages") or [
                {"role": "user", "content": row["question"]},
                {"role": "assistant", "content": row["answer"]},
            ]
            texts = [
                turn
                for turn in turns
                if turn["role"] in ("user", "assistant") and turn.get("content")
            ]
            chats.append([{"role": turn["role"], "content": turn["content"]} for turn in texts])
    return chats


def _compare(name: str, tokenizer: Path, home: Path, quick: bool) -> list[Row]:
    chats = _chats(name, _QUICK_ROWS if quick else _ROWS)
    path = home / f"{name}.jsonl"
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(json.dumps({"messages": chat}, ensure_ascii=False) + "\n" for chat in chats)
    source, encoder = open_source(str(path), cache_dir=home), ChatEncoder(tokenizer)
    table = measure_lengths(source, encoder, cache_dir=home)
    packs = PackedDataset.from_plan(source, encoder, plan_packs(table, capacity=_TOKENS))
    budget = TokenBudget(_TOKENS, overflow="drop")
    batches = TokenBudgetBatches(EncodedSamples(source, encoder), budget, lengths=table.tokens)
    hf = encoder.tokenizer.hf

    def of_plan() -> None:
        for index in range(len(packs)):
            packs[index]

    def by_budget() -> None:
        for _ in batches:
            pass

    def one_by_one() -> None:
        for chat in chats:
            hf.apply_chat_template(chat, tokenize=True)

    seconds = in_turn(
        {"plan": of_plan, "budget": by_budget, "transformers": one_by_one},
        repetitions=1 if quick else 5,
    )
    peer = len(chats) / seconds["transformers"]
    return [
        Row(
            f"{what}, {len(chats):,} chats of {name}",
            "samples/s",
            len(chats) / seconds[key],
            "transformers",
            peer,
        )
        for key, what in (("plan", "packs on the fly"), ("budget", "micro-batches by token budget"))
    ]


if __name__ == "__main__":
    main_of(measure, __doc__)
