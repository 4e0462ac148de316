"""Work of trees, by hand and against pairs of tokens; and all numbers of a report on a plan of them."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brimful import plan_packs
from brimful.plan import CostModel
from brimful.report.analysis.advice import advise
from brimful.report.analysis.facts import gather_facts, source_shares
from brimful.report.analysis.rank_balance import measure_rank_balance
from brimful.report.analysis.shared_work import SharedWork
from brimful.report.analysis.training_run import TrainingRun
from brimful.report.analysis.what_if import compare_plans
from brimful.report.html.page import DATA_ID, render_page
from brimful.report.text.report_lines import describe_facts
from tests.trees.plans import plan_of_trees, table_with_prefixes

SAMPLES = [[5, 6, 7, 8], [5, 6, 7, 9, 9], [5, 6, 7], [1, 2]]
MODEL = CostModel(linear=2, quadratic=1, tile=1)


def planned():
    return plan_of_trees(SAMPLES, [[0, 1], [2, 3]], capacity=8), table_with_prefixes(SAMPLES, least=2)


def test_the_speed_up_is_counted_by_hand():
    """2 · 14 + 54 of samples; 2 · 11 + 9 + 7 + 16 + 9 + 4 of trees."""
    plan, table = planned()
    work = SharedWork.of(plan, MODEL, table)
    assert work is not None
    assert (work.flat_cost, work.tree_cost, work.speedup) == (82, 67, 82 / 67)
    assert SharedWork.of(plan_packs([3], capacity=3), MODEL) is None


@given(
    st.lists(st.lists(st.integers(0, 1), min_size=1, max_size=9), min_size=1, max_size=8),
    st.integers(1, 10),
    st.sampled_from([0.0, 0.5, 1.0]),
)
def test_the_work_of_a_tree_is_of_the_tokens_that_a_token_sees(samples, window, share):
    """Twice the pairs of a token and one before it, once each itself, in layers with and without a window."""
    model = CostModel(linear=0, quadratic=1, tile=1, window=window, windowed_share=share)
    work = SharedWork.of(plan_of_trees(samples, [list(range(len(samples)))]), model)
    assert work is not None
    depths = [len(prefix) for prefix in {tuple(one[:end]) for one in samples for end in range(1, len(one) + 1)}]
    seen = [2 * depth - 1 for depth in depths]
    near = [2 * min(depth, window) - (depth <= window) for depth in depths]
    assert np.isclose(work.tree_cost, (1 - share) * sum(seen) + share * sum(near))


def test_all_numbers_of_a_report():
    """Samples are whole and counted once each, whatever their tokens are in the packs."""
    plan, table = planned()
    run = TrainingRun(cost_model=MODEL, model="toy", dp_world_size=2)
    facts = gather_facts("trees", table=table, plan=plan, run=run)
    data = facts.as_dict()
    assert data["plan"]["samples_per_pack"]["mean"] == 2
    assert (data["shared"]["flat_tokens"], data["shared"]["tree_tokens"]) == (14, 11)
    assert (data["shared"]["speedup"], data["shared"]["not_shared"]["apart"]) == (82 / 67, 1)
    step = data["advice"]["packed"]
    assert (step["samples"], step["tokens"], data["advice"]["positions_per_token"]) == (4, 14, 11 / 14)
    assert data["advice"]["notes"][0]["text"].startswith("Samples share their beginnings: 1.27 times fewer tokens")
    alone = gather_facts("trees", table=None, plan=plan, run=run).length_facts
    assert alone is not None
    assert (alone.of, alone.number, alone.tokens) == ("samples", 4, 14)
    shares = source_shares(np.array([0, 0, 1, 1]), ["a", "b"], table, plan)
    assert [(one.samples_packed, one.tokens_packed) for one in shares] == [(2, 9), (2, 5)]
    work = measure_rank_balance(plan, replace(run, dp_world_size=2))
    assert work is not None
    assert sorted(work.balanced.rank_squares) == [13, 32]
    text = "\n".join(describe_facts(facts))
    assert "Shared beginnings: 2 of 4 samples share their beginning with others of their pack, in 1 tree." in text
    assert "FLOPs of toy       82     67         1.22" in text
    assert "other capacities, by best fit decreasing, each sample on its own" in text
    page = render_page(facts)
    assert "in the packs for another sample" in page
    assert "1.22 ×" in page
    assert json.loads(page.split(f'id="{DATA_ID}">')[1].split("</script>")[0])["shared"] == data["shared"]


def test_targets_of_a_step_are_of_the_samples():
    """Without it the targets of the first leaf are counted once more for each trunk above it."""
    plan, table = planned()
    table.budgets["loss_tokens"] = np.array([1, 2, 2, 1], dtype=np.int32)
    advice = advise(table, plan, TrainingRun(cost_model=MODEL, gradient_accumulation_steps=2))
    assert (advice.unpacked.loss_tokens, advice.packed.loss_tokens) == (3, 6)


def test_alternatives_share_too():
    """Without it other capacities are compared by packs that share nothing."""
    table = table_with_prefixes(SAMPLES, least=2)
    plan = plan_packs(table, capacity=8, share="prefixes")
    rows = compare_plans(table, plan, packs_per_step=1, capacities=[16])
    assert [(row.capacity, row.algorithm, row.num_packs, row.samples_per_pack) for row in rows] == [
        *((8, "auto", plan.num_packs, 4 / plan.num_packs), (16, "auto", 1, 4.0))
    ]


def test_a_flat_plan_is_told_what_its_samples_share():
    """Only if the prefixes are known, and pay: then it costs nothing to say."""
    table = table_with_prefixes(SAMPLES, least=2)
    notes = advise(table, plan_packs(table, capacity=8), TrainingRun()).notes
    assert notes[0].text.startswith("3 samples share 42.9 % of all tokens with others, and each has its own copy")
    without = table_with_prefixes(SAMPLES, least=9)
    assert advise(without, plan_packs(without, capacity=8), TrainingRun()).notes[0].topic != "not shared"
