"""Two processes with gloo: one verdict on both, whatever happens to one of them, and no wait without an end."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


def reports_of(kind, tmp_path, returncodes=(0, 0)):
    """What each rank printed; None for one that ended without a report."""
    path = os.pathsep.join([str(ROOT / "src"), str(ROOT)])
    command = [sys.executable, "-m", "tests.doctor.probing.ranks_run", kind]
    ranks = [
        subprocess.Popen(
            [*command, str(rank), f"file://{tmp_path}/store"],
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    results = []
    for rank, process in enumerate(ranks):
        out, err = process.communicate(timeout=120)
        assert process.returncode == returncodes[rank], err[-2000:]
        results.append(json.loads(out.splitlines()[-1]) if out else None)
    return results


@pytest.mark.parametrize("kind", ["ddp", "unequal"])
def test_right_ranks_agree(kind, tmp_path):
    """Also where one rank has nothing to exchange: it runs as many forwards."""
    first, second = reports_of(kind, tmp_path)
    assert first["report"] == second["report"]
    assert first["report"]["ok"], first["report"]


def test_a_fault_on_one_rank_is_the_verdict_of_both(tmp_path):
    first, second = reports_of("ddp-leak", tmp_path)
    assert first["report"] == second["report"]
    (finding,) = first["report"]["findings"]
    assert finding["judgment"] == "wrong"
    assert "layers.1" in finding["detail"]
    assert "rank 1" in finding["detail"]


@pytest.mark.parametrize(("kind", "words"), [("dead", "rank 1"), ("refusing", "rank 1"), ("failing", "rank 1")])
def test_a_rank_that_cannot_take_part_is_named(kind, words, tmp_path):
    """And training goes on: nothing hangs, and nothing is called shown."""
    first, _ = reports_of(kind, tmp_path)
    (line,) = [line for line in first["report"]["lines"] if line["topic"] == "isolation"]
    assert line["evidence"] == "unknown"
    assert words in line["text"]
    assert len(first["losses"]) == 2
    assert first["seconds"] < 60


@pytest.mark.long
@pytest.mark.parametrize("kind", ["fsdp", "fsdp-leak", "context", "context-leak"])
def test_sharded_weights_and_sharded_rows(kind, tmp_path):
    first, second = reports_of(kind, tmp_path)
    assert first["report"] == second["report"]
    assert first["report"]["ok"] is not kind.endswith("leak")
