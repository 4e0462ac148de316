"""Interrupts, exit codes and the network, as a shell sees them."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.bad_input.tools import CHATS, one_line, write_rows
from tests.cli.tools import Outcome
from tests.cli.tools import outcome as run


def test_ctrl_c_says_that_nothing_is_lost(
    chats: Path, tokenizer: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without it stopping a long job shows a traceback, and starting it again looks dangerous."""
    import brimful.cli.jobs as pack_command

    def stop(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(pack_command, "pack_dataset", stop)
    outcome = run("pack", chats, "-o", tmp_path / "p", "--tokenizer", tokenizer, "--max-length", 64, "--quiet")
    assert outcome.code == 130
    assert outcome.err.strip() == "stopped; what was finished is kept, run the same command to go on"


def in_a_process(*arguments: Any, **environment: str) -> Outcome:
    result = subprocess.run(
        [sys.executable, "-m", "brimful", *map(str, arguments)],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        check=False,
        timeout=120,
    )
    return Outcome(result.returncode, result.stdout, result.stderr)


def test_a_real_process_exits_with_2_and_one_line(tmp_path: Path, tokenizer: Path) -> None:
    """Without it only the function behaves, and what a shell or Slurm sees is untested."""
    path = write_rows(tmp_path / "chats.jsonl", [CHATS[0], {"messages": []}])
    outcome = in_a_process("measure", path, "--tokenizer", tokenizer, "--quiet")
    assert f"{path}:2 (sample 1): 'messages' is empty" in one_line(outcome.code, outcome.err)
    assert outcome.out == ""


@pytest.mark.long
def test_a_hub_id_that_cannot_be_reached_is_one_line(chats: Path, tmp_path: Path) -> None:
    """Without it a misspelt hub id on a node without network is a page of transformers."""
    outcome = in_a_process(
        *("measure", chats, "--tokenizer", "nobody/no-such-model", "--quiet"), HF_HUB_OFFLINE="1", HF_HOME=str(tmp_path)
    )
    assert "--tokenizer nobody/no-such-model" in one_line(outcome.code, outcome.err)
