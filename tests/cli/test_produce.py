"""``brimful produce``: a stream from a directory, stopped and gone on with."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from brimful import open_packs
from brimful.cli.demo.toy_model import train_tokenizer
from tests.cli.tools import outcome


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("tokenizer")
    train_tokenizer(["one two three"], folder, vocab_size=259)
    return str(folder)


def write(path: Path, count: int) -> None:
    with open(path, "a") as file:
        file.writelines(json.dumps({"text": f"sample {index}"}) + "\n" for index in range(count))


def test_a_directory_becomes_a_stream(tmp_path: Path, tokenizer: str) -> None:
    """The whole of the command, with its account; again it finds its work done."""
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.jsonl", 20)
    command = ["produce", str(tmp_path / "in"), "-o", str(tmp_path / "out"), "--tokenizer", tokenizer]
    command += ["--max-length", "64", "--close", "--json"]
    for _ in range(2):
        code, shown, errors = outcome(*command)
        assert (code, errors) == (0, "")
        account = json.loads(shown)
        assert (account["samples_read"], account["samples_packed"], account["shards"]) == (20, 20, 1)
    packs = open_packs(tmp_path / "out")
    assert sorted(sample for pack in packs for sample in pack.sample_ids.tolist()) == list(range(20))
    code, shown, _ = outcome("inspect", str(tmp_path / "out"))
    assert code == 0
    assert "source         " in shown


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((), "-o is missing"),
        (("-o", "out"), "--max-length is missing"),
        (("-o", "out", "--max-length", "64", "--high-water", "3"), "name the trainings by --training"),
        (("-o", "out", "--max-length", "64", "--max-age", "0"), "--max-age must be a number of seconds above 0"),
    ],
)
def test_missing_and_contradicting_options(options: tuple[str, ...], message: str, tmp_path: Path) -> None:
    """Each names the flag."""
    write(tmp_path / "a.jsonl", 1)
    code, _, errors = outcome("produce", str(tmp_path / "a.jsonl"), *options)
    assert code == 2
    assert message in errors


@pytest.mark.parametrize(("signum", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_loses_nothing(tmp_path: Path, tokenizer: str, signum: int, code: int) -> None:
    """It follows its source until it is stopped, and the same command goes on."""
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.jsonl", 20)
    out = tmp_path / "out"
    command = ["produce", str(tmp_path / "in"), "-o", str(out), "--tokenizer", tokenizer, "--max-length", "64"]
    command += ["--lookahead", "4", "--packs-per-shard", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "brimful", *command], stderr=subprocess.PIPE, env=dict(os.environ)
    )
    while not (out / "log" / "000000000000.json").exists():
        assert process.poll() is None, process.communicate()
        time.sleep(0.02)
    process.send_signal(signum)
    _, errors = process.communicate()
    assert process.returncode == code
    assert b"run the same command to go on" in errors
    assert outcome(*command, "--close")[0] == 0
    assert sorted(sample for pack in open_packs(out) for sample in pack.sample_ids.tolist()) == list(range(20))


def test_sigterm_keeps_what_was_read_and_it_says_what_it_does(tmp_path: Path, tokenizer: str) -> None:
    """With the defaults, before a shard is due: one is committed, and the account and the due time were told."""
    (tmp_path / "in").mkdir()
    write(tmp_path / "in" / "a.jsonl", 20)
    out = tmp_path / "out"
    program = "from brimful.cli import produce; from brimful.__main__ import main; produce._LINE_SECONDS = 0.1; main()"
    command = ["produce", str(tmp_path / "in"), "-o", str(out), "--tokenizer", tokenizer, "--max-length", "64"]
    process = subprocess.Popen(
        [sys.executable, "-c", program, *command, "--lanes", "4"], stderr=subprocess.PIPE, text=True
    )
    assert process.stderr is not None
    line = ""
    while not line.startswith("20 samples read"):
        line = process.stderr.readline()
    assert re.fullmatch(r"20 samples read, 0 packs in 0 shards; the next shard is due in \d+ s or less\n", line), line
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=15)
    assert process.returncode == 143
    assert "20 samples read, " in errors
    assert "run the same command to go on" in errors
    account = json.loads(outcome("inspect", str(out), "--json")[1])
    assert account["packs"] == 1
    (tmp_path / "in" / "a.jsonl").unlink()  # carried over: it is not read again
    assert outcome(*command, "--close")[0] == 0
    assert sorted(sample for pack in open_packs(out) for sample in pack.sample_ids.tolist()) == list(range(20))
