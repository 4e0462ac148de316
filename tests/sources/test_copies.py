"""Rows that can be read only once."""

from __future__ import annotations

import io
import json
import os
from pathlib import Path
from typing import Any

import pytest

from brimful.sources import open_source
from tests.sources.tools import JSONL, ROWS, texts


def test_standard_input_is_a_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it data could not come out of a pipe, or the same data piped again would be another data set."""

    def piped(data: str) -> Any:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data.encode())))
        return open_source("-")

    source = piped(JSONL)
    assert (texts(source), source.where(1)) == (["one", "two", "three"], "standard input:2")
    assert piped(JSONL).fingerprint == source.fingerprint
    assert len(list((Path(os.environ["BRIMFUL_CACHE"]) / "spooled").iterdir())) == 1
    assert texts(piped(json.dumps(ROWS))) == texts(source)
