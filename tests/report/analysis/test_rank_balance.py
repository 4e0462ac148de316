"""Waiting of ranks for each other, by hand."""

import pytest

from brimful import LengthTable, plan_packs
from brimful.plan.schedule import Component, CostModel
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
    assert measure_rank_balance(plan, TrainingRun(dp_world_size=5, cost_model=square)) is None


def test_balancing_is_what_makes_ranks_equal():
    """Eight packs of one sample and eight of two: in seeded order some rank waits, balanced none does."""
    plan = plan_packs([8] * 8 + [4] * 16, capacity=8, algorithm="next_fit")
    square = CostModel(linear=0, quadratic=1, tile=1)
    work = measure_rank_balance(plan, TrainingRun(dp_world_size=2, cost_model=square))
    assert work.balanced.worst == 1.0
    assert work.as_it_comes.worst == pytest.approx(64 / 48)
    assert 1.0 < work.as_it_comes.mean < 64 / 48


TOWERS = CostModel(linear=1, quadratic=0, encoder_linear=1, encoder_quadratic=0.25)


def test_each_part_waits_for_its_own_slowest_rank():
    """Four packs of one sample: two have a picture. Side by side no rank waits; otherwise a tower stands still."""
    table = LengthTable.from_lengths([8, 8, 8, 8], patches=[64, 0, 64, 0], patch_blocks=[1, 0, 1, 0])
    plan = plan_packs(table, capacity=8, seed=None)
    work = measure_rank_balance(plan, TrainingRun(dp_world_size=2, cost_model=TOWERS), table)
    language, vision = work.parts
    assert (language.part, vision.part) == (Component.LANGUAGE_MODEL, Component.VISION_TOWER)
    assert (language.as_it_comes, language.balanced, vision.balanced, vision.alone) == (1.0, 1.0, 1.0, 1.0)
    assert vision.as_it_comes in (1.0, 2.0)
    cost_of_picture = 64 + 0.25 * 4096
    assert vision.share == pytest.approx(2 * cost_of_picture / (2 * cost_of_picture + 32))
    assert work.notes == []


def test_parts_that_no_order_balances_are_said():
    """Tower and language model ask for other pairs: one of them waits, and the report says how long."""
    table = LengthTable.from_lengths([8, 8, 6, 6], patches=[16, 4, 16, 4])
    plan = plan_packs(table, capacity=8, seed=None)
    model = CostModel(linear=1, quadratic=0, encoder_linear=1)
    work = measure_rank_balance(plan, TrainingRun(dp_world_size=2, cost_model=model), table)
    language, vision = work.parts
    assert (vision.balanced, vision.alone, language.alone) == (1.0, 1.0, 1.0)
    assert language.balanced == pytest.approx(16 / 14)


def test_what_is_not_counted_is_said():
    """A model of texts for samples with pictures, and a table that measured too little for a tower."""
    table = LengthTable.from_lengths([8, 8], patches=[16, 0])
    plan = plan_packs(table, capacity=8, seed=None)
    text = measure_rank_balance(plan, TrainingRun(dp_world_size=2, cost_model=CostModel(linear=1, quadratic=0)), table)
    assert text.parts == []
    assert text.notes[0].startswith("the model has no vision tower, and the samples have patches")
    towers = measure_rank_balance(plan, TrainingRun(dp_world_size=2, cost_model=TOWERS), table)
    assert towers.notes[0].startswith("towers are not counted: the length table has no patch_blocks")
