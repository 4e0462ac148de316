"""Plans of any lengths by plan_packs: laws, seeds and epochs, and lengths that cannot be planned."""

import gc
import sys
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import brimful
from brimful import LengthTable, plan_packs
from brimful.base.compiling import compiled_forms
from brimful.errors import (
    InvalidLengthsError,
    SettingsError,
)
from brimful.plan import ALGORITHMS
from brimful.plan.counts.histogram import Histogram, lower_bound
from brimful.testing.strategies import capacities_and_lengths
from tests.plan.contents import ids_of, lengths_of, segments_of

SOLVER = find_spec("highspy") is not None
NAMES = [name for name in ALGORITHMS if name != "optimal" or SOLVER]
POLICIES = ["drop", "truncate", "truncate_left", "split"]


@given(case=capacities_and_lengths(oversized=True), policy=st.sampled_from(POLICIES), algorithm=st.sampled_from(NAMES))
def test_every_token_once_or_accounted_and_nothing_over_capacity(case, policy, algorithm):
    """The law of the whole library, by sample and by token."""
    capacity, lengths = case
    plan = plan_packs(lengths, capacity=capacity, algorithm=algorithm, overflow=policy)
    plan.validate(np.array(lengths))
    seen = {}
    for pack in plan:
        assert 0 < sum(length for _, _, length in pack) <= capacity
        for sample, start, length in pack:
            for token in range(start, start + length):
                assert (sample, token) not in seen
                seen[sample, token] = True
    ledger = plan.ledger
    assert len(seen) == ledger.tokens_packed
    assert len(seen) + ledger.tokens_dropped + ledger.tokens_truncated == sum(lengths)
    assert len({sample for sample, _ in seen} | set(plan.dropped_ids.tolist())) == len(lengths)
    assert plan.bound <= plan.num_packs


@given(case=capacities_and_lengths(), seed=st.integers(0, 5))
def test_the_seed_costs_no_fill_and_loses_nothing(case, seed):
    """Shuffling changes companions and order, never the number of packs or their patterns."""
    capacity, lengths = case
    plain = plan_packs(lengths, capacity=capacity, seed=None)
    shuffled = plan_packs(lengths, capacity=capacity, seed=seed)
    shuffled.validate(np.array(lengths))
    pattern = lambda plan: sorted(tuple(sorted(s.length for s in pack)) for pack in plan)  # noqa: E731
    assert pattern(shuffled) == pattern(plain)


def test_the_seed_is_the_only_source_of_difference():
    """Same arguments, same plan; and another seed really is another order."""
    lengths = np.random.default_rng(0).integers(1, 100, 5000)
    first = plan_packs(lengths, capacity=256, seed=7)
    again = plan_packs(lengths.astype(np.int64), capacity=256, seed=7)
    other = plan_packs(lengths, capacity=256, seed=8)
    assert first.fingerprint == again.fingerprint != other.fingerprint


def test_plan_of_a_known_seed_never_changes():
    """A plan made today must be made again by any later numpy: its fingerprint is written down here."""
    lengths = np.arange(1, 2001) % 97 + 1
    assert plan_packs(lengths, capacity=128, seed=3).fingerprint == "2900d856ecb219c0da71f8c29e74b55b"


def test_pack_order_has_nothing_to_do_with_length():
    """Decreasing algorithms open packs longest first; served in that order, training would see a curriculum."""
    lengths = np.random.default_rng(0).integers(1, 1000, 20_000)
    plan = plan_packs(lengths, capacity=1024)
    longest = np.maximum.reduceat(plan.lengths, plan.offsets[:-1])
    assert abs(np.corrcoef(np.arange(len(longest)), longest)[0, 1]) < 0.05


@pytest.mark.parametrize(
    ("lengths", "message"),
    [
        ([], "no lengths: nothing"),
        ([3, 0], "sample 1 has length 0"),
        ([3, -2], "sample 1 has length -2"),
        ([3, -1], "sample 1 has length -1"),
        ([1.5, 2.0], "must be whole numbers and are float64"),
        ([[1, 2]], "the one of sample 0 is a list of 2"),
        ([2**31], "above the maximum"),
        (np.array(["a"]), "must be whole numbers"),
    ],
)
def test_lengths_that_cannot_be_planned(lengths, message):
    """Bad lengths must stop here, named, not surface as a broken plan."""
    with pytest.raises(InvalidLengthsError, match=message):
        plan_packs(lengths, capacity=8)


def test_rejected_samples_are_left_out_and_counted():
    """A length table marks malformed rows with -1; they must neither crash nor vanish."""
    table = LengthTable({"tokens": np.array([3, -1, 5], dtype=np.int32)})
    plan = plan_packs(table, capacity=8)
    assert segments_of(plan) == [(0, 0, 3), (2, 0, 5)]
    assert (plan.ledger.samples_in, plan.ledger.samples_packed, plan.ledger.samples_rejected) == (3, 2, 1)
    plan.validate(table)


@pytest.mark.parametrize(("shape", "least"), [("lognormal", 0.9995), ("uniform", 0.9988), ("two humps", 0.9963)])
def test_twenty_thousand_samples_are_at_the_bound(shape, least):
    """Windows of 1,000 samples reach .9971, .9841 and .9890 of these shapes at 8,192."""
    rng = np.random.default_rng(0)
    draw = {
        "lognormal": lambda: rng.lognormal(6.5, 1, 20_000),
        "uniform": lambda: rng.integers(1, 8193, 20_000),
        "two humps": lambda: np.where(
            rng.random(20_000) < 0.7, rng.normal(400, 150, 20_000), rng.normal(3000, 800, 20_000)
        ),
    }
    lengths = np.clip(draw[shape](), 1, 8192).astype(np.int32)
    plan = plan_packs(lengths, capacity=8192)
    bound = lower_bound(Histogram.of(lengths), capacity=8192)
    assert plan.num_packs <= bound + 1
    # Of these draws no plan may be as full: where the bound says so, the bound is the target.
    assert plan.fill_ratio >= min(least, plan.ledger.tokens_packed / ((bound + 1) * 8192))


def test_a_limit_of_eight_tokens_for_eight_samples_of_seven():
    """verl#7553: [7] * 8 with a limit of 8 gave a micro-batch of 14 tokens."""
    assert lengths_of(plan_packs([7] * 8, capacity=8)) == [[7]] * 8


def test_capacity_and_names_beyond_sixteen_bits():
    """LLaVA-OneVision keeps lengths in uint16: 66,000 becomes 464."""
    assert lengths_of(plan_packs([66_000, 65_072], capacity=131_072, seed=None)) == [[66_000, 65_072]]
    with pytest.raises(SettingsError, match="2,147,483,647"):
        plan_packs([1], capacity=2**31)


def test_membership_changes_with_the_epoch_only_where_it_is_given():
    """Resuming an epoch must find the same packs; another epoch may ask for new companions at the same fill."""
    lengths = np.random.default_rng(0).integers(1, 40, 2000)
    first, again, later = (plan_packs(lengths, capacity=128, seed=1, epoch=epoch) for epoch in (0, 0, 1))
    assert first.fingerprint == again.fingerprint == plan_packs(lengths, capacity=128, seed=1).fingerprint
    assert later.fingerprint != first.fingerprint
    assert later.num_packs == first.num_packs
    members = lambda plan: {frozenset(ids) for ids in ids_of(plan)}  # noqa: E731
    assert len(members(first) & members(later)) < 0.01 * first.num_packs


def test_a_default_call_goes_through_few_files():
    """A reader who follows one call turns the page at most thirty times, base modules included."""
    lengths = np.clip(np.random.default_rng(0).lognormal(6.5, 1, 20_000), 1, 4_096).astype(np.int64)
    package = Path(brimful.__file__).parent
    files = []

    def follow(frame, event, argument):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(str(package)) and (not files or files[-1] != path):
            files.append(path)

    gc.collect()  # what earlier tests left is not removed in the middle of the call
    with compiled_forms(False):  # the form must not depend on what this process compiled before
        sys.setprofile(follow)
        try:
            plan_packs(lengths, capacity=4_096)
        finally:
            sys.setprofile(None)
    route = [str(Path(path).relative_to(package)) for path in files]
    assert "plan/fit/best_fit_decreasing.py" in route
    assert len(route) - 1 <= 30, "\n".join(route)
