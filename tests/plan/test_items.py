"""From a length table to items: columns, derived budgets, policies, each at its limit."""

import re
from dataclasses import replace

import pytest

from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError
from brimful.lengths.table import LengthTable
from brimful.plan.items import prepare_items
from brimful.plan.plan_settings import PlanSettings
from brimful.plan.policies.budgets import Alignment, Budgets

TABLE = LengthTable.from_lengths([30, 50, 10, 70], patches=[0, 64, 300, 128])


def test_columns_and_derived_budgets():
    """Tokens aligned, patches from the table, samples and squares from real lengths."""
    limits = {"patches": 400, "samples": 3, "squares": 6000}
    settings = PlanSettings(capacity=100, budgets=limits, alignment=Alignment(segment=8, total=32))
    items = prepare_items(TABLE, settings)
    assert items.sizes.tolist() == [[32, 0, 1, 900], [56, 64, 1, 2500], [16, 300, 1, 100], [72, 128, 1, 4900]]
    assert items.capacities.tolist() == [96, 400, 3, 6000], "96 is what 32 can use of 100"
    assert repr(Budgets.of(100, limits)) == "Budgets(tokens 100, patches 400, samples 3, squares 6,000)"


def test_squares_do_not_wrap():
    """Lengths are int32; 50,000² is not."""
    settings = PlanSettings(capacity=65_536, budgets={"squares": 2**32})
    items = prepare_items(LengthTable.from_lengths([50_000]), settings)
    assert items.sizes.tolist() == [[50_000, 2_500_000_000]]


@pytest.mark.parametrize(
    ("budgets", "message"),
    [
        ({"frames": 5}, "budgets['frames'] is unknown: these lengths have patches, samples, squares"),
        ({"patches": 0}, "budgets['patches'] must be from 1"),
        ({"patches": 1.5}, "budgets['patches'] must be a whole number"),
        ({"tokens": 5}, "the capacity in tokens is capacity"),
        ({"patches": 2**53}, "budgets['patches'] must be from 1"),
    ],
)
def test_impossible_budgets(budgets, message):
    """Each refusal names the budget and what would do."""
    with pytest.raises(SettingsError, match=re.escape(message)):
        prepare_items(TABLE, PlanSettings(capacity=100, budgets=budgets))


def test_a_sample_over_another_budget():
    """Named with its number; dropped and counted by budget; not to be cut."""
    settings = PlanSettings(capacity=60, budgets={"patches": 200})
    with pytest.raises(OversizedSampleError, match=r"longer than the capacity of 60 tokens: sample 3 \(70\)"):
        prepare_items(TABLE, settings)
    with pytest.raises(OversizedSampleError) as caught:
        prepare_items(TABLE, replace(settings, capacity=100))
    assert str(caught.value) == (
        "1 of 4 samples exceed the capacity of 200 patches: sample 2 (300). "
        'Choose overflow="drop", or budgets={"patches": 300}'
    )
    items = prepare_items(TABLE, replace(settings, overflow="drop"))
    assert (items.dropped_by, items.segments.dropped_ids.tolist()) == ({"tokens": 1, "patches": 1}, [2, 3])
    assert items.sizes.tolist() == [[30, 0], [50, 64]]
    assert items.segments.sample_ids.tolist() == [0, 1]
    with pytest.raises(SettingsError, match=r"overflow=\"truncate\" cuts tokens, not patches, .* sample 2 \(300\)"):
        prepare_items(TABLE, replace(settings, overflow="truncate"))
    with pytest.raises(SettingsError, match=r"overflow=\"split\" divides tokens, not patches: of sample 3 \(70 tokens"):
        prepare_items(TABLE, replace(settings, budgets={"patches": 400}, overflow="split"))


def test_policies_cut_at_the_usable_capacity():
    """Capacity 100, aligned to 32: a sample of 110 is cut at 96, and is then aligned."""
    table = LengthTable.from_lengths([110, 97, 96])
    alignment = Alignment(segment=16, total=32)
    settings = PlanSettings(capacity=100, budgets={"samples": 9}, overflow="split", alignment=alignment)
    cut = prepare_items(table, settings)
    assert cut.segments.lengths.tolist() == [96, 14, 96, 1, 96]
    assert cut.sizes.tolist() == [[96, 1], [16, 1], [96, 1], [16, 1], [96, 1]]
    kept = prepare_items(table, replace(settings, overflow="drop"))
    assert (kept.segments.dropped_ids.tolist(), kept.dropped_by) == ([0, 1], {"tokens": 2})


def test_a_negative_size_names_the_sample():
    """A column that marks something with -1 is not a budget."""
    with pytest.raises(InvalidLengthsError, match="frames: sample 1 has -1"):
        prepare_items(LengthTable.from_lengths([3, 4], frames=[0, -1]), PlanSettings(capacity=8, budgets={"frames": 5}))
