"""All ranks come to one verdict in bounded time, whatever one of them does."""

import json
import threading
from datetime import timedelta

import pytest

pytest.importorskip("torch")

import torch.distributed as dist

from brimful.doctor.probing.ranks import RankTalk
from brimful.doctor.report import DoctorReport
from tests.doctor.probing.processes import two_ranks

MODULE = "tests.doctor.probing.ranks_run"


def talks(number, timeout=0.5):
    """Talks of some ranks over one store, in threads of this process."""
    store = dist.HashStore()  # type: ignore[attr-defined]
    store.set_timeout(timedelta(seconds=30))
    return [RankTalk(rank, range(number), timeout, store, _number=7) for rank in range(number)]


def ask(members, question, values):
    """Answers of each rank; a rank without a value never asks."""
    answers = {}

    def one(rank):
        answers[rank] = members[rank].ask(question, values[rank])

    threads = [threading.Thread(target=one, args=(rank,)) for rank in values]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    return answers


def test_all_ranks_get_all_answers():
    values = {0: "a", 1: [1, None], 2: {"x": 2}}
    answers = ask(talks(3), "ready", values)
    assert [answers[rank].values for rank in range(3)] == [values] * 3
    assert all(answer.missing == () for answer in answers.values())


def test_a_missing_rank_is_named_and_a_late_one_hears_it():
    members = talks(3)
    answers = ask(members, "ready", {0: 0, 1: 1})
    assert answers[0] == answers[1]
    assert answers[0].missing == (2,)
    late = members[2].ask("ready", 2)
    assert late == answers[0], "it finds all answers, and takes the list that counts all the same"
    assert ask(members, "next", {0: 0, 1: 1, 2: 2})[2].missing == ()


def test_questions_of_two_talks_do_not_mix():
    first, second = talks(2), talks(2)
    for member in second:
        member._number, member.store = 8, first[0].store
    assert ask(first, "ready", {0: "a", 1: "b"})[0].values == {0: "a", 1: "b"}
    assert ask(second, "ready", {0: "c", 1: "d"})[1].values == {0: "c", 1: "d"}


def test_a_store_that_is_gone_leaves_a_rank_alone():
    class Gone:
        def set(self, key, value):
            raise RuntimeError("connection reset")

    answers = RankTalk(0, (0, 1), 0.1, Gone()).ask("ready", 1)
    assert (answers.values, answers.missing) == ({0: 1}, (1,))


def verdicts(results):
    """The report of the ranks, which must be equal."""
    first, second = (json.dumps(result["report"]) for result in results)
    assert first == second
    assert all(result["seconds"] < 30 for result in results)
    return DoctorReport.from_dict(results[0]["report"])


@pytest.mark.parametrize(
    ("kind", "rank", "layer"),
    [
        ("ddp-leak", "rank 1: ", "layers.1"),
        pytest.param("fsdp-leak", "", "layers.1", marks=pytest.mark.long),
        pytest.param("context-leak", "", "layers.0", marks=pytest.mark.long),
    ],
)
def test_one_verdict_about_a_leak(kind, rank, layer, tmp_path):
    report = verdicts(two_ranks(MODULE, kind, tmp_path))
    (finding,) = report.findings
    assert finding.detail.startswith(f"{rank}other tokens in the sample at row 0")
    assert f"first in {layer} " in finding.detail
    assert not report.ok


@pytest.mark.long
def test_means_of_ranks(tmp_path):
    """DDP averages gradients of ranks, and each has divided by its own targets."""
    report = verdicts(two_ranks(MODULE, "ddp-uneven", tmp_path))
    (finding,) = report.findings
    assert (finding.topic, finding.judgment.value) == ("divisor", "suspect")
    assert "ranks have 13 to 57 of them" in finding.detail


@pytest.mark.long
@pytest.mark.parametrize("kind", ["ddp", "fsdp", "context", "unequal"])
def test_right_ranks_are_not_accused(kind, tmp_path):
    """Also with parts of one row on two ranks, and with a rank that has nothing to exchange."""
    report = verdicts(two_ranks(MODULE, kind, tmp_path))
    assert report.ok, str(report)
    assert report.isolation.value == "shown"
    if kind == "context":
        assert report.verdict.endswith("; unknown: positions (probe)")
        assert "nor with its parts on other ranks" in str(report)
    assert "gradients not looked at" in str(report)


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("failing", "not shown: a forward (exchanged) failed on rank 1: RuntimeError: no such tokens"),
        ("refusing", "not shown: rank 1: no token ids in the batch"),
    ],
)
def test_a_rank_that_cannot_is_named_on_all(kind, text, tmp_path):
    results = two_ranks(MODULE, kind, tmp_path)
    report = verdicts(results)
    assert report.lines[0].text.startswith(text)
    assert len(results[0]["losses"]) == 2, "training goes on"


@pytest.mark.long
def test_a_dead_rank_is_named(tmp_path):
    result, nothing = two_ranks(MODULE, "dead", tmp_path)
    assert nothing is None
    assert result["report"]["lines"][0]["text"] == "not shown: no answer from rank 1 in 3 seconds"
    assert len(result["losses"]) == 2
    assert result["seconds"] < 30
