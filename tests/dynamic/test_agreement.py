"""Ranks agree on each step by one maximum: here the numbers of the other ranks are given."""

import pytest

torch = pytest.importorskip("torch")

from brimful.dynamic.agreement import RankAgreement  # noqa: E402
from brimful.errors import RankFailedError, SettingsError  # noqa: E402


@pytest.fixture
def others(monkeypatch):
    """Numbers that the other ranks of three bring to the reduction; this one is rank 1. Lists what this rank brought."""
    given, brought = [0, 0], []

    def all_reduce(numbers, op, group):
        assert (op, group) == (torch.distributed.ReduceOp.MAX, "ranks")
        brought.append(numbers.tolist())
        torch.maximum(numbers, torch.tensor(given), out=numbers)

    distributed = {"is_initialized": lambda: True, "all_reduce": all_reduce}
    distributed |= {"get_rank": lambda group: 1, "get_world_size": lambda group: 3}
    for name, function in distributed.items():
        monkeypatch.setattr(torch.distributed, name, function)
    return given, brought


@pytest.mark.parametrize(
    ("tail", "own", "some_other", "is_served"),
    [
        # The flag is "has one" where any is enough, and "has none" where all are needed.
        ("pad", True, 0, True), ("pad", False, 0, False), ("pad", False, 1, True), ("repeat", False, 1, True),
        ("drop", True, 0, True), ("drop", False, 0, False), ("drop", True, 1, False),
    ],
)  # fmt: skip
def test_a_step_is_served_by_all_or_by_none(others, tail, own, some_other, is_served):
    given, brought = others
    given[0] = some_other
    assert RankAgreement(tail, group="ranks")(own) is is_served
    assert brought == [[int(own != (tail == "drop")), 0]]


@pytest.mark.parametrize(("number", "rank"), [(3, 0), (2, 1), (1, 2)])
def test_the_lowest_rank_that_failed_is_named(others, number, rank):
    """A lower rank is a higher number, so that one maximum finds it."""
    given, _ = others
    given[1] = number
    agreement = RankAgreement(group="ranks")
    with pytest.raises(RankFailedError, match=f"rank {rank} could not make its next step"):
        agreement(True)


def test_a_rank_that_fails_says_so(others):
    _, brought = others
    agreement = RankAgreement(group="ranks")
    agreement.fail()
    assert brought == [[1, 2]]
    assert agreement.rank_and_size == (1, 3)


@pytest.mark.parametrize(
    ("tail", "given_by_others", "brought_by_this", "answer"),
    [
        ("pad", [0, 0], [0, 2], False), ("pad", [1, 0], [0, 2], True), ("pad", [1, 1], [0, 2], True),
        ("pad", [1, 3], [0, 2], 0), ("pad", [0, 3], [0, 2], False), ("drop", [0, 0], [1, 0], False),
    ],
)  # fmt: skip
def test_a_rank_that_can_run_nothing(others, tail, given_by_others, brought_by_this, answer):
    """It fails no rank while no other has a step; served one it raises alone, and a lower rank that fails is named."""
    given, brought = others
    given[:] = given_by_others
    agreement = RankAgreement(tail, group="ranks")
    if answer is False or answer is True:
        assert agreement(False, can_run=False) is answer
    else:
        with pytest.raises(RankFailedError, match=f"rank {answer} could not make its next step"):
            agreement(False, can_run=False)
    assert brought == [brought_by_this]


def test_a_group_is_made_of_all_processes(others, monkeypatch):
    monkeypatch.setattr(torch.distributed, "new_group", lambda backend: {"gloo": "ranks"}[backend])
    assert RankAgreement()(True)


def test_without_ranks_there_is_nobody_to_ask():
    with pytest.raises(SettingsError, match=r"call torch.distributed.init_process_group first"):
        RankAgreement()
