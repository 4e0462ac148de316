"""Contents of packs: of each budget, and of each source before packing and after."""

import numpy as np
import pytest

from brimful import plan_packs
from brimful.errors import SettingsError
from brimful.measure import LengthTable
from brimful.report.analysis.facts import gather_facts, measure_budget_fill, source_shares
from brimful.report.analysis.training_run import TrainingRun


def test_shares_before_and_after():
    """A long source loses a sample to dropping, and its share with it."""
    table = LengthTable({"tokens": np.array([2, 3, 9, 4, -1], dtype=np.int32)})
    sources = np.array([0, 0, 1, 1, 1])
    dropped = source_shares(sources, ["chats", "books"], table, plan_packs(table, capacity=5, overflow="drop"))
    assert [(s.samples, s.tokens, s.samples_packed, s.tokens_packed) for s in dropped] == [(2, 5, 2, 5), (2, 13, 1, 4)]
    split = source_shares(sources, ["chats", "books"], table, plan_packs(table, capacity=5, overflow="split"))
    assert [(s.samples_packed, s.tokens_packed) for s in split] == [(2, 5), (2, 13)]
    assert [s.tokens_packed for s in source_shares(sources, ["a", "b"], table, None)] == [0, 0]


def test_a_table_that_knows_its_parts_needs_no_array():
    table = LengthTable(
        {"tokens": np.array([2, 3, 9], dtype=np.int32)}, provenance={"parts": [["a.jsonl", 2], ["b.jsonl", 1]]}
    )
    facts = gather_facts("parts", table=table, plan=None, run=TrainingRun())
    assert [(share.name, share.tokens) for share in facts.shares] == [("a.jsonl", 5), ("b.jsonl", 9)]


@pytest.mark.parametrize(
    "sources",
    [
        np.array([0, 1]),
        np.array([0.0, 1.0, 1.0]),
        np.array([0, 1, 2]),
        np.array([0, 1, -1]),
    ],
)
def test_sources_that_do_not_fit_are_refused(sources):
    with pytest.raises(SettingsError, match="the number of its source, from 0 to 1, for each of the 3 samples"):
        source_shares(sources, ["a", "b"], LengthTable.from_lengths([1, 2, 3]), None)


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
