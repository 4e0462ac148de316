"""A directory as ``brimful demo`` leaves it, with less in it.

python -m tests.integrations.trainers.demo_folder FOLDER
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def make_demo_folder(folder: Path) -> None:
    """Write ``chats.jsonl``, ``model`` with its tokenizer, and ``packs``."""
    from transformers import AutoTokenizer

    from brimful import ChatEncoder, PlanSettings, open_packs, open_source, pack_dataset
    from brimful.cli.demo.docstring_chats import make_chats
    from brimful.cli.demo.toy_model import make_model, train_tokenizer

    chats = make_chats(limit=400)
    (folder / "chats.jsonl").write_text("".join(json.dumps(chat) + "\n" for chat in chats), encoding="utf-8")
    texts = [turn["content"] for chat in chats for turn in chat["messages"]]
    make_model(train_tokenizer(texts, folder / "model", vocab_size=900)).save_pretrained(folder / "model")
    encoder = ChatEncoder(AutoTokenizer.from_pretrained(folder / "model"))
    settings = PlanSettings(capacity=2048, overflow="drop")
    pack_dataset(open_source(chats), encoder, folder / "packs", settings, cache_dir=folder / "cache")
    assert len(open_packs(folder / "packs")) > 4


if __name__ == "__main__":
    make_demo_folder(Path(sys.argv[1]))
