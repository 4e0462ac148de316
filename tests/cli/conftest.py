"""What the commands are run on: six chats of known lengths with their store, and a store that left a row and a sample out.

The tokenizer has one token a byte, and a turn costs its role, its content and four tokens of markup, so that a chat of
contents ``u`` and ``a`` bytes long has ``u + a + 21`` tokens::

    <|im_start|> u s e r \\n … <|im_end|> \\n <|im_start|> a s s i s t a n t \\n … <|im_end|> \\n
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from brimful import PlanSettings, open_source, pack_dataset
from brimful.testing.toys import toy_chat_encoder
from tests.cli.tools import LENGTHS, TEMPLATE, run, save_tokenizer

# 6 packs of 8 samples of 12 tokens and 4 packs of 9 samples of 11: 84 samples in 10 packs, 16 times.
EIGHT_POINT_FOUR = ([12] * 48 + [11] * 36) * 16


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One token a byte, ChatML's special tokens, as ``transformers`` saves it."""
    return save_tokenizer(tmp_path_factory.mktemp("tokenizer"), TEMPLATE)


@pytest.fixture
def chats(tmp_path: Path) -> Path:
    path = tmp_path / "chats.jsonl"
    with open(path, "w") as file:
        for number in range(len(LENGTHS)):
            answer = chr(ord("a") + number) * (LENGTHS[number] - 23)
            turns = [{"role": "user", "content": f"{number}?"}, {"role": "assistant", "content": answer}]
            file.write(json.dumps({"messages": turns}) + "\n")
    return path


@pytest.fixture
def array(tmp_path: Path) -> Path:
    np.save(tmp_path / "lengths.npy", np.array(EIGHT_POINT_FOUR))
    return tmp_path / "lengths.npy"


@pytest.fixture
def packs(chats: Path, tokenizer: Path, tmp_path: Path) -> Path:
    run("pack", chats, "-o", tmp_path / "packs", "--tokenizer", tokenizer, "--max-length", 70, "--quiet")
    return tmp_path / "packs"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """chats.jsonl and packs/: samples of 6, 12, 30 and 4 tokens at capacity 20, the long one dropped; row 3 malformed."""
    home = tmp_path_factory.mktemp("home")
    rows = [json.dumps({"text": "x" * length}) for length in (6, 12, 30)] + ["no json", json.dumps({"text": "xxxx"})]
    (home / "chats.jsonl").write_text("\n".join(rows) + "\n")
    source = open_source(home / "chats.jsonl", cache_dir=home / "cache")
    pack_dataset(
        source, toy_chat_encoder(), home / "packs", PlanSettings(capacity=20, overflow="drop"), on_bad_sample="skip",
        cache_dir=home / "cache",
    )  # fmt: skip
    return home
