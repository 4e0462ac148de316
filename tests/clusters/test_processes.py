"""Four real processes with gloo on the loopback: what threads cannot show."""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import sys

import pytest

from tests.clusters.builds import expected

pytest.importorskip("torch")
WORLD = 4


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """What each rank saw in each case."""
    folder = tmp_path_factory.mktemp("ranks")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "tests.clusters.gloo_rank", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command += [str(WORLD), str(port)]
    done = subprocess.run(command, env=environment, stderr=subprocess.PIPE, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    seen = [json.loads((folder / f"rank {rank}.json").read_text()) for rank in range(WORLD)]
    for rank in range(1, WORLD):
        seen[rank]["killed"] = json.loads((folder / f"killed {rank}.json").read_text())
    return seen


def test_ranks_come_from_the_process_group(seen):
    assert [rank["ranks"] for rank in seen] == [[number, WORLD] for number in range(WORLD)]


def test_a_build_longer_than_the_timeout_of_collectives_hurts_none(seen):
    """The hang that everybody knows: the others wait in a barrier for rank 0, which still tokenises."""
    assert [rank["slow"][:2] for rank in seen] == [[expected(0), WORLD]] * WORLD
    assert [rank["slow"][2] for rank in seen] == [[0], [], [], []]


def test_epochs_change_together_while_collectives_run(seen):
    assert [rank["epochs"][0] for rank in seen] == [[[expected(epoch), epoch] for epoch in range(4)]] * WORLD
    assert [rank["epochs"][1] for rank in seen] == [[0, 1, 2, 3], [], [], []]


def test_an_error_reaches_every_process_in_seconds(seen):
    assert [rank["fault"][0] for rank in seen] == ["ValueError"] + ["BuildFailedError"] * (WORLD - 1)
    assert all("row 7 is malformed" in rank["fault"][1] and rank["fault"][2] for rank in seen)


def test_a_rank_0_that_is_killed_is_missed_on_all_others(seen):
    """The kernel frees its lock, long before a collective runs out of time."""
    for rank in seen[1:]:
        name, message, seconds = rank["killed"]
        assert name == "TaskFailedError"
        assert "rank 0" in message
        assert seconds < 3.5, "collectives have 4 s"


def test_one_call_gives_equal_metadata_and_states_everywhere(seen):
    assert len({tuple(rank["one call"]) for rank in seen}) == 1
    assert seen[0]["one call"][0] == expected(0)


def test_a_broadcast_plan_is_the_same_everywhere(seen):
    assert [rank["broadcast"] for rank in seen] == [seen[1]["broadcast"]] * WORLD
    assert seen[0]["broadcast"][0] == expected(9)
    assert {rank["broadcast of nothing"] for rank in seen} == {"rank 0 has no plan to send"}


def test_a_rank_with_another_source_or_encoder_stops_in_a_plan_and_in_a_broadcast(seen):
    """Without it a node with a stale copy, or another tokenizer, would train its own tokens in packs made for others."""
    assert [rank["unlike"] for rank in seen[:2]] == [["", ""]] * 2
    for text in seen[2]["unlike"]:
        assert re.fullmatch(
            r"PlanMismatchError: rank 2 has different arguments from rank 0, which made the plan: "
            r"source \(memory \w{7} on rank 0, memory \w{7} here\)",
            text,
        )
    for text in seen[3]["unlike"]:
        assert text.endswith("which made the plan: encoder version (0 on rank 0, 1 here)")
