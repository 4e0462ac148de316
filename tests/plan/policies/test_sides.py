"""Both sides of a preference are planned as one: together, dropped together, cut alike."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import LengthTable, PlanSettings, plan_packs
from brimful.errors import NoTargetError, OversizedSampleError, PlanMismatchError, SettingsError
from brimful.lengths.targets import Targets
from brimful.mixtures import Mixture
from brimful.plan import Plan


def table_of(tokens, prompts=None):
    """Lengths of sides; the first tokens of each are its prompt, the rest its targets."""
    targets = None
    if prompts is not None:
        targets = Targets.of_runs(runs_of(tokens, prompts))
    return LengthTable({"tokens": np.array(tokens, dtype=np.int32)}, provenance={"group_size": 2}, targets=targets)


def runs_of(tokens, prompts):
    from brimful.base.ragged import offsets_of
    from brimful.base.tables import Ragged
    from brimful.lengths.targets import runs_of_masks

    mask = np.concatenate([np.arange(length) >= prompt for length, prompt in zip(tokens, prompts, strict=True)])
    return runs_of_masks(Ragged(mask, offsets_of(np.array(tokens))))


def packs_of(plan):
    return [plan.sample_ids[a:b].tolist() for a, b in zip(plan.offsets[:-1], plan.offsets[1:], strict=True)]


def test_a_table_of_preferences_needs_no_groups():
    """Without groups, 6 would share its pack with 4 of another pair: 0 3 | 1 2."""
    plan = plan_packs(table_of([6, 2, 3, 4]), capacity=10, seed=None)
    assert sorted(packs_of(plan)) == [[0, 1], [2, 3]]
    with pytest.raises(SettingsError, match="packed together already"):
        plan_packs(table_of([6, 2, 3, 4]), capacity=10, groups=[0, 1, 0, 1])


def test_what_happens_to_pairs_over_capacity(tmp_path):
    """Three pairs at capacity 10: one that fits, one over it with both sides, one with a long and a short side."""
    tokens = [6, 4, 7, 4, 9, 2]
    with pytest.raises(OversizedSampleError, match=r"^row 1 \(number 2 of the data\), 7 \+ 4 tokens, takes 11"):
        plan_packs(table_of(tokens), capacity=10)
    dropped = plan_packs(table_of(tokens), capacity=10, overflow="drop")
    assert packs_of(dropped) == [[0, 1]]
    assert dropped.dropped_ids.tolist() == [2, 3, 4, 5]
    cut = plan_packs(table_of(tokens), capacity=10, overflow="truncate", seed=None)
    assert dict(zip(cut.sample_ids.tolist(), cut.lengths.tolist(), strict=True)) == {0: 6, 1: 4, 2: 5, 3: 4, 4: 5, 5: 2}
    assert (cut.ledger.samples_truncated, cut.ledger.tokens_truncated) == (2, 6)
    assert cut.truncated.sample_ids.tolist() == [2, 4]
    assert cut.truncated.lengths.tolist() == [7, 9]
    cut.save(tmp_path / "plan.arrow")
    again = Plan.open(tmp_path / "plan.arrow")
    assert again.fingerprint == cut.fingerprint
    assert again.sample_lengths.tolist() == cut.sample_lengths.tolist()
    left = plan_packs(table_of(tokens), capacity=10, overflow="truncate_left", seed=None)
    assert dict(zip(left.sample_ids.tolist(), left.starts.tolist(), strict=True)) == {
        0: 0,
        1: 0,
        2: 2,
        3: 0,
        4: 4,
        5: 0,
    }
    with pytest.raises(SettingsError, match="both samples of a row of preferences or KTO stay in one pack"):
        plan_packs(table_of(tokens), capacity=10, overflow="split")


def test_a_prompt_that_fills_half_a_pack_leaves_no_target():
    """As TRL drops a row whose prompt fills ``max_length``: both sides of it."""
    table = table_of([4, 4, 8, 9], prompts=[2, 2, 6, 6])
    with pytest.raises(NoTargetError, match="sample 2, 3"):
        plan_packs(table, capacity=10, overflow="truncate")
    plan = plan_packs(table, capacity=10, overflow="truncate", no_target="drop")
    assert packs_of(plan) == [[0, 1]]
    assert plan.dropped_ids.tolist() == [2, 3]


def test_the_mate_of_a_rejected_side_is_left_out():
    plan = plan_packs(table_of([3, 3, -1, 5]), capacity=10)
    assert packs_of(plan) == [[0, 1]]
    assert plan.dropped_ids.tolist() == [3]
    assert plan.outcome.dropped_by == {"group_mate_rejected": 1}


def test_what_takes_samples_apart_is_refused():
    with pytest.raises(SettingsError, match="cuts samples anywhere, and preferences stay whole"):
        plan_packs(table_of([3, 3]), capacity=10, algorithm="concat_split")
    with pytest.raises(
        SettingsError,
        match="draws single samples, and the samples of a group, or of a row of preferences or KTO, stay together",
    ):
        plan_packs(table_of([3, 3]), capacity=10, draw=Mixture(weights={"a": 1, "b": 1}), sources={"a": 1, "b": 1})
    with pytest.raises(SettingsError, match="2 samples stay together, aligned to 8: raise it"):
        plan_packs(table_of([30, 30]), capacity=8, alignment=8, overflow="truncate")


@given(
    st.lists(st.integers(1, 30), min_size=2, max_size=40).filter(lambda tokens: len(tokens) % 2 == 0),
    st.sampled_from(["drop", "truncate", "truncate_left"]),
    st.sampled_from([1, 4]),
)
def test_pairs_are_whole_or_absent(tokens, overflow, segment):
    table = table_of(tokens)
    plan = plan_packs(table, capacity=24, overflow=overflow, alignment=segment)
    plan.validate(table)
    for pack in packs_of(plan):
        assert [sample for sample in pack if sample % 2 == 0] == [sample - 1 for sample in pack if sample % 2]
    full = np.array(tokens)
    # A pair that fits keeps every token.
    fits = (-(-full // segment) * segment).reshape(-1, 2).sum(axis=1) <= 24
    for sample, length in zip(plan.sample_ids.tolist(), plan.lengths.tolist(), strict=True):
        assert length == tokens[sample] if fits[sample // 2] else length <= 12
    if overflow == "drop":
        assert sorted(plan.sample_ids.tolist()) == np.flatnonzero(np.repeat(fits, 2)).tolist()


def test_validation_finds_a_pair_in_two_packs():
    """A plan of the same lengths that knew nothing of pairs."""
    tokens = [6, 2, 3, 4, 5, 5]
    unaware = plan_packs(tokens, capacity=10, seed=None)
    with pytest.raises(PlanMismatchError, match="is not side by side in one pack"):
        unaware.validate(table_of(tokens))
    assert PlanSettings(capacity=10).capacity == 10
