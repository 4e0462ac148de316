"""Who this process is among the ranks."""

from __future__ import annotations

import pytest

from brimful.clusters import Ranks, Waiting, find_ranks
from brimful.errors import SettingsError


def test_a_process_without_a_launcher_is_alone(monkeypatch):
    monkeypatch.delenv("RANK", raising=False)
    assert find_ranks() == Ranks(0, 1)


def test_the_launcher_counts_before_the_process_group_is_there(monkeypatch):
    """Trainers make data sets first: every rank would plan, and none would know of the others."""
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setenv("LOCAL_RANK", "3")
    assert find_ranks() == Ranks(3, 8, speaks=False)
    assert find_ranks(rank=0, world_size=2) == Ranks(0, 2), "an argument beats the environment"


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"rank": 1}, "go together"),
        ({"rank": 2, "world_size": 2}, "rank"),
        ({"rank": 0, "world_size": 0}, "world_size"),
    ],
)
def test_impossible_ranks_are_refused(options, match):
    with pytest.raises(SettingsError, match=match):
        find_ranks(**options)


@pytest.mark.parametrize("options", [{"poll_seconds": 0}, {"see_seconds": "1"}, {"arrive_seconds": -2}])
def test_impossible_times_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        Waiting(**options)
