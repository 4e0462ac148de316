"""The whole job in Python: chats, a tokenizer, packs on disk, and what became of every sample.

    python examples/01_pack_your_chats.py              # trains a small tokenizer; needs no network
    python examples/01_pack_your_chats.py DIR|ID       # the tokenizer of your model

The lines are those of ``brimful pack``; each step can be used alone (02_plan_only.py plans without any text).
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from brimful import ChatEncoder, PlanSettings, open_packs, open_source, pack_dataset
from brimful.cli.demo.toy_model import train_tokenizer
from brimful.report.store_check import check_store

CHATS = [
    {
        "messages": [
            {"role": "user", "content": f"What is {a} + {b}?"},
            {"role": "assistant", "content": f"{a} + {b} = {a + b}."},
            {"role": "user", "content": "And all the numbers up to there?"},
            {"role": "assistant", "content": ", ".join(map(str, range(a + b + 1))) + "."},
        ]
    }
    for a in range(12)
    for b in range(0, a * a, 3)  # a few chats are much longer than the others
]


def main(tokenizer: str | None) -> None:
    with tempfile.TemporaryDirectory() as folder:
        if tokenizer is None:
            tokenizer = str(Path(folder, "tokenizer"))
            texts = [turn["content"] for chat in CHATS for turn in chat["messages"]]
            train_tokenizer(texts, tokenizer, vocab_size=400)

        source = open_source(
            CHATS
        )  # or a path: "chats.jsonl", "data/*.parquet", a datasets.Dataset
        encoder = ChatEncoder(tokenizer, train_on="assistant")
        summary = pack_dataset(
            source,
            encoder,
            Path(folder, "packs"),
            PlanSettings(capacity=512, overflow="drop"),
            cache_dir=Path(folder, "cache"),
        )
        print(summary)

        packs = open_packs(Path(folder, "packs"))
        print(packs)
        print(packs[0], "of the samples", packs[0].sample_ids.tolist())
        print(encoder.decode(packs[0].segment(0))[:80])
        print(check_store(Path(folder, "packs"), plan=summary.plan))  # reads every byte again


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else None)
