"""Waiting of ranks for each other, by hand."""

import pytest

from brimful import plan_packs
from brimful.plan.schedule import CostModel
from brimful.report.analysis.rank_balance import measure_rank_balance
from brimful.report.analysis.training_run import TrainingRun


def test_waiting_of_two_ranks_by_hand():
    """Packs of squares 64 64 32 32 in pairs: balanced, equals meet, and no rank waits."""
    plan = plan_packs([8, 8, 4, 4, 4, 4], capacity=8, algorithm="next_fit")
    square = CostModel(linear=0, quadratic=1, tile=1)
    work = measure_rank_balance(plan, TrainingRun(dp_world_size=2, cost_model=square))
    assert work.num_steps == 2
    assert work.balanced.mean == work.balanced.worst == 1.0
    assert work.as_it_comes.mean in (1.0, pytest.approx(64 / 48))
    assert sum(work.as_it_comes.rank_squares) == 64 + 64 + 32 + 32
    assert work.balanced.rank_squares == [96, 96]
    assert work.balanced.rank_tokens == [16, 16]
    assert work.pack_cost_spread == pytest.approx(64 / 48)
    assert work.attention_ratio == 1.0
    assert measure_rank_balance(plan, TrainingRun(dp_world_size=5, cost_model=square)) is None


def test_balancing_is_what_makes_ranks_equal():
    """Eight packs of one sample and eight of two: in seeded order some rank waits, balanced none does."""
    plan = plan_packs([8] * 8 + [4] * 16, capacity=8, algorithm="next_fit")
    square = CostModel(linear=0, quadratic=1, tile=1)
    work = measure_rank_balance(plan, TrainingRun(dp_world_size=2, cost_model=square))
    assert work.balanced.worst == 1.0
    assert work.as_it_comes.worst == pytest.approx(64 / 48)
    assert 1.0 < work.as_it_comes.mean < 64 / 48
