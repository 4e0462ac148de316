"""Fill by budget: what packs hold of each quantity that was measured."""

from __future__ import annotations

from brimful import plan_packs
from brimful.measure import LengthTable
from brimful.report.analysis.budget_fill import measure_budget_fill


def test_each_budget_is_summed_over_the_segments_of_a_pack() -> None:
    """Without it a report says that packs are full while the tower has half of its work."""
    table = LengthTable.from_lengths([4, 4, 4, 4], patches=[8, 0, 4, 0], images=[1, 0, 1, 0], frames=[0, 0, 0, 0])
    plan = plan_packs(table, capacity=8, budgets={"patches": 8})
    tokens, patches, images = measure_budget_fill(plan, table)
    assert (tokens.name, tokens.capacity, tokens.total, tokens.fill_ratio) == ("tokens", 8, 16, 1.0)
    by_pack = sorted(sum(int(table.budgets["patches"][s.sample_id]) for s in plan.pack(index)) for index in range(2))
    assert (patches.least, patches.most, patches.total, patches.fill_ratio) == (*by_pack, 12, 0.75)
    assert (images.capacity, images.fill_ratio, images.total) == (None, None, 2)


def test_texts_have_one_budget_and_no_section() -> None:
    """Without it every report of texts repeats its fill."""
    table = LengthTable.from_lengths([4, 4])
    assert measure_budget_fill(plan_packs(table, capacity=8), table) == []
    assert measure_budget_fill(plan_packs([4, 4], capacity=8), None) == []
