"""The guard of stages fails over a bound, and counts the least of all rounds."""

import importlib
import itertools

import pytest

guard = importlib.import_module("benchmarks.guard")


def test_a_stage_over_its_bound_is_named():
    """Also one whose time is not a number."""
    ratios = {"plan": 2.4, "read": 1.7, "collate": float("nan")}
    assert guard.slow_stages(ratios, {"plan": 2.5, "read": 1.6, "collate": 2.5}) == ["read", "collate"]
    with pytest.raises(KeyError, match="new"):
        guard.slow_stages({"new": 0.1})


def test_the_least_of_the_rounds_counts_and_the_first_does_not():
    """Functions run in turn, so that a loaded minute meets both of a pair."""
    order: list[str] = []
    ticks = itertools.accumulate([0, 1, 0, 9, 0, 5, 0, 4, 0, 3, 0, 6])  # of (a, b) in three rounds
    found = guard.least([lambda: order.append("a"), lambda: order.append("b")], rounds=2, clock=lambda: next(ticks))
    assert order == ["a", "b"] * 3
    assert found == [3, 4]
