"""Blocks that a killed job measured and did not compare with the reference are compared when the job goes on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("fastokens", reason="the fast tokenizer comes with brimful[fast]")

from brimful import measure_lengths, pack_dataset
from brimful.encode import ChatEncoder
from brimful.errors import EncodersDifferError
from brimful.sources import Sample
from tests.measure.planted import chats

ROOT = Path(__file__).parents[2]

pytestmark = pytest.mark.skipif(os.name != "posix", reason="SIGKILL")

SCRIPT = """
import os, signal, sys
import pytest
from brimful import measure_lengths, pack_dataset
from brimful.encode import ChatEncoder
from brimful.measure import pending
from tests.measure import planted

rows, tokenizer, home, fault = sys.argv[1:]
encoder = ChatEncoder(tokenizer)
assert "fastokens" in encoder.engine.name  # it was compared on hard texts before the fault is planted
getattr(planted, fault)(pytest.MonkeyPatch())
pending._SMALL_BYTES = 0
pending.compare_block = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
if fault == "lose_tokens":
    measure_lengths(rows, encoder)
else:
    pack_dataset(rows, encoder, home, capacity=512)
"""


@pytest.fixture(scope="module")
def killed_jobs(small_qwen, tmp_path_factory):
    """``killed_jobs(fault)`` is where a job with a fault was killed, once, between measuring and comparing."""
    folders = {}

    def run(fault):
        if fault in folders:
            return folders[fault]
        folder = folders[fault] = tmp_path_factory.mktemp(fault)
        (folder / "chats.jsonl").write_text(chats())
        (folder / "job.py").write_text(SCRIPT)
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("BRIMFUL_CACHE", str(folder / "cache"))
            # Kept in the cache: the process loads the tokenizer and its template without Transformers.
            encoder = ChatEncoder(small_qwen)
            encoder.encode(Sample(0, messages=json.loads(chats(1))["messages"]))
            assert "fastokens" in encoder.engine.name
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
            words = [folder / "job.py", folder / "chats.jsonl", small_qwen, folder / "packs", fault]
            ended = subprocess.run([sys.executable, *words], env=environment, cwd=ROOT, timeout=300, check=False)
        assert ended.returncode == -signal.SIGKILL, "the fault was not hit: the test proves nothing"
        assert list(folder.glob("cache/lengths/*/parts/*/*.arrow"))
        return folder

    return run


@pytest.fixture
def killed(killed_jobs, tmp_path, monkeypatch):
    """``killed(fault)`` takes up what such a job left, with a copy of its cache and its packs; returns its rows."""

    def take_up(fault):
        folder = killed_jobs(fault)
        for name in ("cache", "packs"):
            if (folder / name).exists():
                shutil.copytree(folder / name, tmp_path / name, copy_function=shutil.copy2)
        monkeypatch.setenv("BRIMFUL_CACHE", str(tmp_path / "cache"))
        return str(folder / "chats.jsonl")

    return take_up


def test_lengths(killed, small_qwen, tmp_path):
    """Without it a killed job is the way in which wrong lengths come into a table."""
    rows = killed("lose_tokens")
    encoder = ChatEncoder(small_qwen)
    with pytest.raises(
        EncodersDifferError, match=r"chats\.jsonl:3 \(sample 2\): fastokens .* tokens, and \d+ by the reference"
    ):
        measure_lengths(rows, encoder)
    assert encoder.engine.name.startswith("tokenizers ")
    right = measure_lengths(rows, ChatEncoder(small_qwen).engine.reference, cache_dir=tmp_path / "other")
    assert measure_lengths(rows, encoder).tokens.tolist() == right.tokens.tolist()


def test_targets(killed, small_qwen, tmp_path):
    """Lengths of the killed job are right; only its tokens, which the job takes up again, tell of the fault."""
    rows = killed("shift_targets")
    with pytest.raises(EncodersDifferError, match=r"target \d+ is False, and True by the reference"):
        pack_dataset(rows, ChatEncoder(small_qwen), tmp_path / "packs", capacity=512)
    pack_dataset(rows, ChatEncoder(small_qwen), tmp_path / "packs", capacity=512)
