"""Faults of fast libraries, planted, and the chats that meet them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from brimful.base.ragged import offsets_of
from brimful.base.tables import Ragged
from brimful.encode import token_places, tokenizer
from brimful.fast.fast_tokenizer import FastTokenizer


def chats(count: int = 60) -> str:
    """Return JSON lines of chats; the answer of chat ``n`` is ``n + 1`` times ``a``."""
    return "".join(
        json.dumps(
            {"messages": [{"role": "user", "content": f"q {n}"}, {"role": "assistant", "content": "a " * (n + 1)}]}
        )
        + "\n"
        for n in range(count)
    )


def lose_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the fast tokenizer lose the last token of texts that hold ``a a a``; its other texts stay right."""
    real = FastTokenizer.ids

    def ids(self, texts):
        right = real(self, texts)
        rows = [
            row[: -1 if "a a a" in text else None]
            for text, row in zip(texts, map(right.row, range(len(texts))), strict=True)
        ]
        return Ragged(np.concatenate([np.empty(0, np.int32), *rows]), offsets_of([len(row) for row in rows]))

    monkeypatch.setattr(FastTokenizer, "ids", ids)


def shift_targets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make the fast way to the place of each token miss the first target of every answer; lengths stay right."""
    real = token_places.runs_by_bytes

    def runs(*arguments):
        firsts, *others = real(*arguments)
        return firsts + 1, *others

    monkeypatch.setattr(tokenizer, "runs_by_bytes", runs)
