"""What changes when packing is turned on: every number here can be checked by hand."""

import math
import re
from itertools import combinations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import plan_packs
from brimful.errors import PlanMismatchError, SettingsError
from brimful.measure import LengthTable
from brimful.plan.counts.histogram import Histogram
from brimful.plan.schedule import CostModel
from brimful.report.analysis.advice import _probabilities_of_longest, advise
from brimful.report.table_model import runs_table
from brimful.report.text.report_lines import describe_advice, draw_choices
from brimful.testing.strategies import capacities_and_lengths

LINEAR = CostModel(linear=1, quadratic=0)


SQUARE = CostModel(linear=0, quadratic=1, tile=1)


# 6 packs of 8 samples of 12 tokens and 4 packs of 9 samples of 11: 84 samples in 10 packs, 8.4 a pack.
EIGHT_POINT_FOUR = [12] * 48 + [11] * 36


def plan_of(lengths, capacity=100, **settings):
    return plan_packs(lengths, capacity=capacity, algorithm="next_fit", **settings)


def ten_times(plan_lengths, times):
    """The same packs again and again: next fit closes the last pack of each round, which is full."""
    return np.tile(plan_lengths, times)


def advice_for(lengths=EIGHT_POINT_FOUR, *, plan=None, table=None, world=8, micro=1, accumulation=4, **others):
    others.setdefault("cost_model", LINEAR)
    return advise(
        table,
        plan if plan is not None else plan_of(lengths),
        dp_world_size=world,
        micro_batch_size=micro,
        gradient_accumulation_steps=accumulation,
        **others,
    )


def test_the_example_that_everybody_meets():
    """8.4 samples a pack, 8 ranks, accumulation 4: 269 samples a step, was 32; accumulation 1 gives 67."""
    plan = plan_of(ten_times(EIGHT_POINT_FOUR, 16))
    assert plan.num_packs == 160
    advice = advice_for(plan=plan)
    assert advice.packing_factor == pytest.approx(8.4)
    assert advice.unpacked.samples == 32
    assert advice.unpacked.steps_per_epoch == 16 * 84 // 32 == 42
    assert advice.packed.samples == pytest.approx(268.8)
    assert advice.packed.steps_per_epoch == 5
    assert [(choice.keeps, choice.gradient_accumulation_steps) for choice in advice.choices] == [
        ((), 1),
        (("settings",), 4),
    ]
    assert [choice.nearest_to for choice in advice.choices] == [("samples", "padded tokens"), ()]
    assert [choice.step.steps_per_epoch for choice in advice.choices] == [20, 5]
    assert [choice.step.samples for choice in advice.choices] == pytest.approx([67.2, 268.8])
    assert [choice.batch_ratio for choice in advice.choices] == pytest.approx([2.1, 8.4])
    lines = describe_advice(advice)
    assert lines[0] == "samples/step   269, was 32 unpacked -> accumulation 4 → 1 gives 67"
    assert lines[1] == "steps/epoch    5, was 42 unpacked -> accumulation 1 gives 20"


def test_tokens_of_a_step_follow_its_samples():
    """6 · 96 + 4 · 99 = 972 tokens in 10 packs: 97.2 a pack, 972 ÷ 84 a sample."""
    advice = advice_for(plan=plan_of(ten_times(EIGHT_POINT_FOUR, 16)))
    assert advice.packed.tokens == pytest.approx(32 * 97.2)
    assert advice.unpacked.tokens == pytest.approx(32 * 972 / 84)


@pytest.mark.parametrize(
    ("samples_a_pack", "merits"),
    [
        (21, ["keeps samples"]),
        (19, ["keeps samples"]),
        (24, ["nearest to samples"]),
        (16, ["nearest to samples"]),
        (153, ["nearest to samples"]),  # 7.65 times
    ],
)
def test_only_what_is_near_is_called_kept(samples_a_pack, merits):
    """7.66 times the samples under the words "keeps samples" are another training to a reader of the words alone."""
    plan = plan_of([10] * samples_a_pack * 160, 10 * samples_a_pack)
    advice = advice_for(plan=plan, world=1, accumulation=20)
    best = advice.choices[advice.recommended]
    assert best.gradient_accumulation_steps == 1
    assert best.batch_ratio == pytest.approx(samples_a_pack / 20)
    assert [said for said in best.merits if said.endswith("samples")] == merits
    assert ("keeps samples" in "\n".join(draw_choices(advice))) == (merits == ["keeps samples"])


def test_no_choice_is_offered_twice():
    """Three packs on 8 ranks are one step whatever is set: four rows of one effect are no choice."""
    advice = advice_for(plan=plan_of([50] * 6), world=8, accumulation=8)
    (only,) = advice.choices
    assert (only.gradient_accumulation_steps, only.step.samples, only.step.steps_per_epoch) == (8, 6.0, 1)
    half = advice_for(plan=plan_of([25] * 48), world=1, accumulation=24)  # 12 packs; 12 and 24 a step are one epoch
    assert [choice.gradient_accumulation_steps for choice in half.choices] == [6, 24]
    assert advice.nothing_to_set


def test_what_changes_is_named_and_nothing_else():
    """ "accumulation 1 → 1" where the packs of a forward go from 16 to 4 sends the reader to the wrong setting."""
    forward = describe_advice(advice_for(plan=plan_of([25] * 160), world=1, micro=16, accumulation=1))
    assert forward[0] == "samples/step   64, was 16 unpacked -> packs a forward 16 → 4 gives 16"
    assert forward[1] == "steps/epoch    3, was 10 unpacked -> accumulation 1 of 4 packs gives 10"
    both = describe_advice(advice_for(plan=plan_of([25] * 160), world=1, micro=2, accumulation=4))
    assert both[0] == "samples/step   32, was 8 unpacked -> accumulation 4 → 1 gives 8"


def test_one_is_said_in_the_singular():
    """ "1 data-parallel ranks" reads like a template that was not read."""
    advice = advice_for(plan=plan_of([10] * 100), world=1, accumulation=1, warmup_steps=20)
    text = "\n".join([*describe_advice(advice), *draw_choices(advice), *(note.text for note in advice.notes)])
    assert "a capacity that is about 10 tokens would be nearer" in text
    assert not re.search(r"(?<![\d.,])1 (samples|ranks|packs|steps|tokens)\b", text.replace(" steps of warm-up", ""))
    wide = advice_for(plan=plan_of([90, 10, 10, 10, 10, 10, 10, 10, 10, 10] * 9), world=1, accumulation=1)
    assert any("a capacity that is smaller would be nearer" in note.text for note in wide.notes)


def test_learning_rates_and_warmup():
    """Ratio 4: four times by linear scaling, twice by square root scaling, a quarter of the warm-up steps."""
    plan = plan_of([25] * 160)  # 4 a pack, 40 packs
    advice = advice_for(plan=plan, world=2, accumulation=1, learning_rate=1e-4, warmup_steps=100)
    (only,) = advice.choices
    assert (only.keeps, only.nearest_to) == (("settings",), ("samples", "padded tokens"))
    assert (only.batch_ratio, only.warmup_steps) == (4.0, 25)
    table = draw_choices(advice)
    assert table[1].split()[:9] == ["1", "×", "1", "8", "4.00", "200", "20", "0.0004", "0.0002"]
    notes = {note.topic: note for note in advice.notes}
    assert "Goyal et al., 2017" in notes["LR for SGD"].source
    assert "Malladi et al., 2022" in notes["LR for Adam"].source
    assert "a capacity that is about 25 tokens would be nearer" in notes["smallest step"].text


def test_a_batch_that_can_be_kept_keeps_its_learning_rate():
    """4 samples a pack and accumulation 4: accumulation 1 is the same step, and no other setting is needed."""
    advice = advice_for(plan=plan_of([25] * 160), world=2, accumulation=4, warmup_steps=100)
    best = advice.choices[advice.recommended]
    assert (best.gradient_accumulation_steps, best.batch_ratio, best.warmup_steps) == (1, 1.0, 100)
    notes = {note.topic: note.text for note in advice.notes}
    assert "smallest step" not in notes


def test_packs_of_one_forward_may_be_fewer_than_its_samples_were():
    """Micro-batch 8 unpacked, 1 pack: 4 samples a pack need two forwards to see eight."""
    advice = advice_for(plan=plan_of([25] * 160), world=1, micro=8, accumulation=1, packs_per_micro_batch=1)
    best = advice.choices[advice.recommended]
    assert (best.packs_per_micro_batch, best.gradient_accumulation_steps, best.batch_ratio) == (1, 2, 1.0)
    assert advice.packed.samples == 4
    assert [choice.keeps for choice in advice.choices] == [("settings",), ("samples", "padded tokens")]


def test_micro_batches_shrink_before_a_step_grows():
    """Micro-batch 8 with 4 samples a pack: two packs a forward."""
    advice = advice_for(plan=plan_of([25] * 160), world=1, micro=8, accumulation=1)
    best = advice.choices[advice.recommended]
    assert (best.packs_per_micro_batch, best.gradient_accumulation_steps, best.batch_ratio) == (2, 1, 1.0)


def test_padding_of_two_lengths_by_hand():
    """4 4 2 2 in pairs: both 2 in one of six pairs, so 23/6 a row; a sixth of the pairs without a 4."""
    advice = advice_for(plan=plan_of([4, 4, 2, 2], 8), world=1, micro=2, accumulation=1, cost_model=SQUARE)
    longest, full = advice.padded_to_longest, advice.padded_to_capacity
    row = (5 * 4 + 1 * 2) / 6
    assert longest.row_tokens == pytest.approx(row)
    assert longest.step_tokens == pytest.approx(2 * row)
    assert longest.padding_ratio == pytest.approx(1 - 3 / row)
    square = (5 * 16 + 1 * 4) / 6
    assert longest.speedup == pytest.approx(4 * square / 40)
    assert longest.compute_ratio == pytest.approx(1 - 40 / (4 * square))
    assert (full.row_tokens, full.padding_ratio) == (8.0, pytest.approx(1 - 3 / 8))
    assert full.speedup == pytest.approx(4 * 64 / 40)


def test_a_larger_padded_step_is_kept_by_more_packs():
    """7 rows of 1 and one of 9 at micro-batch 8 are padded to 72: as many tokens as five packs of 16 have."""
    plan = plan_of([1, 1, 1, 1, 1, 1, 1, 9] * 8, 16)  # 16 tokens, 8 samples a pack
    advice = advice_for(plan=plan, world=1, micro=8, accumulation=1)
    chosen = {name: choice for choice in advice.choices for name in choice.keeps}
    assert chosen["samples"].packs_per_micro_batch == 1
    packs = chosen["padded tokens"].packs_per_micro_batch * chosen["padded tokens"].gradient_accumulation_steps
    assert packs == round(advice.padded_to_longest.step_tokens / 16)


@given(st.lists(st.integers(1, 5), min_size=1, max_size=7), st.integers(1, 8))
def test_chances_of_the_longest_are_those_of_all_choices(lengths, draws):
    """Without it the padded run is estimated from a draw, or as if samples could be drawn twice."""
    items = Histogram.of(np.array(lengths))
    chosen = list(combinations(lengths, min(draws, len(lengths))))
    expected = [sum(max(one) == length for one in chosen) / len(chosen) for length in items.lengths]
    assert _probabilities_of_longest(items, draws) == pytest.approx(expected)


@given(
    capacities_and_lengths(max_samples=60),
    st.integers(1, 4), st.integers(1, 4), st.integers(1, 4), st.none() | st.integers(1, 4),
)  # fmt: skip
def test_every_advice_adds_up(case, world, micro, accumulation, packs):
    """Steps times rows cover the epoch, the recommended choice is the nearest, and nothing is over what can be set."""
    capacity, lengths = case
    plan = plan_of(lengths, capacity)
    advice = advice_for(plan=plan, world=world, micro=micro, accumulation=accumulation, packs_per_micro_batch=packs)
    assert 1 <= len(advice.choices) <= 6
    assert advice.packing_factor == len(lengths) / plan.num_packs
    seen = [choice.packs_per_micro_batch * choice.gradient_accumulation_steps for choice in advice.choices]
    assert seen == sorted(set(seen))
    for choice in advice.choices:
        assert choice.packs_per_micro_batch <= advice.packs_per_micro_batch
        step = choice.step
        assert step.rows == world * choice.packs_per_micro_batch * choice.gradient_accumulation_steps
        assert (step.steps_per_epoch - 1) * step.rows < plan.num_packs <= step.steps_per_epoch * step.rows
    best = advice.choices[advice.recommended]
    assert "samples" in (*best.keeps, *best.nearest_to)
    assert ("samples" in best.keeps) == (abs(best.batch_ratio - 1) < 0.1)
    assert sum("settings" in choice.keeps for choice in advice.choices) == 1
    effects = [choice.step.samples for choice in advice.choices]
    assert len(effects) == len(set(effects)), "two choices of one effect are one choice"
    for padded in (advice.padded_to_longest, advice.padded_to_capacity):
        assert padded.speedup >= 1
        assert 0 <= padded.padding_ratio < 1
    if packs is None or packs == 1:
        apart = [abs(math.log(choice.batch_ratio)) for choice in advice.choices]
        if advice.packs_per_micro_batch == 1:
            assert apart[advice.recommended] == min(apart)


def test_loss_tokens_are_those_of_the_packed_samples():
    """Dropped samples give no loss; cut ones make it an upper bound, and it says so."""
    table = LengthTable.from_lengths([4, 4, 2, 20], loss_tokens=[2, 3, 1, 9])
    dropped = advice_for(plan=plan_of(table, 8, overflow="drop"), table=table, world=1, accumulation=1)
    assert dropped.packed.loss_tokens == pytest.approx((2 + 3 + 1) / 2)
    assert dropped.unpacked.loss_tokens == pytest.approx(6 / 3)
    assert [row["loss tokens, at most"] for row in runs_table(dropped).rows][1:3] == [2, 3]
    split = advice_for(plan=plan_of(table, 8, overflow="split"), table=table, world=1, accumulation=1)
    assert split.packed.loss_tokens == pytest.approx(15 / plan_of(table, 8, overflow="split").num_packs)
    assert advice_for(plan=plan_of([4, 4], 8)).packed.loss_tokens is None


def test_an_epoch_smaller_than_a_step_counts_what_there_is():
    """Six samples cannot be 32 a step."""
    advice = advice_for(plan=plan_of([3, 3, 5, 6, 1, 1], 7))
    assert (advice.unpacked.samples, advice.unpacked.steps_per_epoch) == (6.0, 1)
    assert (advice.padded_to_longest.step_tokens, advice.padded_to_capacity.step_tokens) == (19, 42)
    assert advice.packed.samples == 6.0


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"world": 0}, "dp_world_size must be at least 1 and is 0"),
        ({"micro": -1}, "micro_batch_size"),
        ({"accumulation": 0}, "gradient_accumulation_steps"),
        ({"packs_per_micro_batch": 0}, "packs_per_micro_batch"),
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"learning_rate": 0.0}, "learning_rate"),
        ({"learning_rate": float("nan")}, "learning_rate"),
    ],
)
def test_impossible_settings_are_named(change, named):
    with pytest.raises(SettingsError, match=named):
        advice_for(**change)


def test_a_table_of_other_samples_is_refused():
    with pytest.raises(PlanMismatchError, match="the plan is for 4 samples and the length table has 1"):
        advice_for(plan=plan_of([4, 4, 2, 2], 8), table=LengthTable.from_lengths([1]))
