"""plan_packs: checks, policies, seeds, and what a plan promises."""

from importlib.util import find_spec

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import LengthTable, Plan, plan_packs
from brimful.errors import (
    CorruptFileError,
    InvalidLengthsError,
    OversizedSampleError,
    PlanMismatchError,
    SettingsError,
)
from brimful.plan import ALGORITHMS
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.lower_bound import lower_bound
from brimful.testing.strategies import capacities_and_lengths

SOLVER = find_spec("highspy") is not None or find_spec("scipy") is not None
NAMES = [name for name in ALGORITHMS if name != "optimal" or SOLVER]
POLICIES = ["drop", "truncate", "truncate_left", "split"]


def segments_of(plan):
    return sorted(segment for pack in plan for segment in pack)


@pytest.mark.parametrize(
    ("policy", "segments"),
    [
        ("drop", [(0, 0, 3)]),
        ("truncate", [(0, 0, 3), (1, 0, 4)]),
        ("truncate_left", [(0, 0, 3), (1, 6, 4)]),
        ("split", [(0, 0, 3), (1, 0, 4), (1, 4, 4), (1, 8, 2)]),
    ],
)
def test_each_overflow_policy_on_one_long_sample(policy, segments):
    """The policies differ in which tokens survive; a wrong start would train on the wrong end."""
    assert segments_of(plan_packs([3, 10], capacity=4, overflow=policy)) == segments


@pytest.mark.parametrize(
    ("policy", "account"),
    [
        ("drop", {"samples_packed": 1, "tokens_packed": 3, "samples_dropped": 1, "tokens_dropped": 10}),
        ("truncate", {"samples_packed": 2, "tokens_packed": 7, "samples_truncated": 1, "tokens_truncated": 6}),
        ("truncate_left", {"samples_packed": 2, "tokens_packed": 7, "samples_truncated": 1, "tokens_truncated": 6}),
        ("split", {"samples_packed": 2, "tokens_packed": 13, "samples_split": 1}),
    ],
)
def test_every_policy_says_what_it_cost(policy, account):
    """Silent loss is the complaint this library answers; the ledger must show each kind apart."""
    ledger = plan_packs([3, 10], capacity=4, overflow=policy).ledger.as_dict()
    zero = {"samples_dropped": 0, "tokens_dropped": 0, "samples_truncated": 0, "tokens_truncated": 0}
    zero |= {"samples_split": 0, "samples_rejected": 0, "samples_without_target": 0}
    expected = {"samples_in": 2, "tokens_in": 13, "segments": ledger["segments"], **zero, **account}
    assert ledger == expected


def test_oversized_error_names_samples_lengths_and_ways_out():
    """The message is the interface: ids, lengths, limit, flags."""
    with pytest.raises(
        OversizedSampleError, match=r"1 of 2 samples .* capacity of 4 tokens: sample 1 \(10\)"
    ) as caught:
        plan_packs([3, 10], capacity=4)
    assert 'overflow="drop", truncate, truncate_left or split, or capacity=10' in str(caught.value)


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
        ([], "there are no lengths"),
        ([3, 0], "sample 1 has length 0"),
        ([3, -2], "sample 1 has length -2"),
        ([3, -1], "sample 1 has length -1"),
        ([1.5, 2.0], "must be whole numbers and are float64"),
        ([[1, 2]], "that of sample 0 is a list of 2"),
        ([2**31], "above the most"),
        (np.array(["a"]), "must be whole numbers"),
    ],
)
def test_lengths_that_cannot_be_planned(lengths, message):
    """Bad lengths must stop here, named, not surface as a broken plan."""
    with pytest.raises(InvalidLengthsError, match=message):
        plan_packs(lengths, capacity=8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 0}, "capacity must be from 1"),
        ({"capacity": -5}, "capacity must be from 1"),
        ({"capacity": 2**31}, "capacity must be from 1 to 2,147,483,647"),
        ({"capacity": 7.5}, "whole number"),
        ({"capacity": True}, "whole number"),
        ({"capacity": 8, "algorithm": "magic"}, 'algorithm="magic" is unknown: use one of'),
        ({"capacity": 8, "overflow": "explode"}, "overflow 'explode' is unknown: use one of error, drop"),
        ({"capacity": 8, "seed": "x"}, "seed must be a whole number"),
    ],
)
def test_impossible_options(options, message):
    """Each names the flag and what it takes."""
    with pytest.raises(SettingsError, match=message):
        plan_packs([1, 2], **options)


def test_rejected_samples_are_left_out_and_counted():
    """A length table marks malformed rows with -1; they must neither crash nor vanish."""
    table = LengthTable({"tokens": np.array([3, -1, 5], dtype=np.int32)})
    plan = plan_packs(table, capacity=8)
    assert segments_of(plan) == [(0, 0, 3), (2, 0, 5)]
    assert (plan.ledger.samples_in, plan.ledger.samples_packed, plan.ledger.samples_rejected) == (3, 2, 1)
    plan.validate(table)


@given(case=capacities_and_lengths(oversized=True), policy=st.sampled_from(POLICIES))
def test_a_saved_plan_opens_as_it_was(case, policy, tmp_path_factory):
    """The file is what every rank opens; all arrays and the account survive, memory-mapped."""
    capacity, lengths = case
    plan = plan_packs(lengths, capacity=capacity, overflow=policy)
    path = tmp_path_factory.mktemp("plan") / "plan.arrow"
    plan.save(path)
    opened = Plan.open(path)
    for name in ("offsets", "sample_ids", "starts", "lengths", "dropped_ids"):
        assert getattr(opened, name).tolist() == getattr(plan, name).tolist()
    assert (opened.fingerprint, opened.ledger, opened.record, opened.bound, repr(opened)) == (
        plan.fingerprint,
        plan.ledger,
        plan.record,
        plan.bound,
        repr(plan),
    )
    assert not opened.sample_ids.flags.writeable


def test_a_truncated_plan_is_refused(tmp_path):
    """Half a plan must not open as a shorter one."""
    path = tmp_path / "plan.arrow"
    plan_packs([3, 3, 5], capacity=7).save(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(CorruptFileError, match=r"plan\.arrow cannot be read"):
        Plan.open(path)


def damaged(change):
    plan = plan_packs([3, 3, 5, 6, 1, 1], capacity=7, seed=None)
    for name in ("sample_ids", "starts", "lengths"):
        setattr(plan, name, np.array(getattr(plan, name)))  # writable copies
    change(plan)
    return plan


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda p: p.sample_ids.__setitem__(0, 4), "overlap|in no pack|ends at"),
        (lambda p: p.lengths.__setitem__(0, 7), "pack 0 holds 8 tokens of 7"),
        (lambda p: p.lengths.__setitem__(2, 4), "do not add up"),
        (lambda p: p.starts.__setitem__(2, 3), "ends at 8, and the sample has 5"),
        (lambda p: p.sample_ids.__setitem__(0, 99), "outside 0 … 5"),
    ],
)
def test_validate_finds_a_planted_fault(change, message):
    """Validation that cannot fail proves nothing."""
    plan_packs([3, 3, 5, 6, 1, 1], capacity=7, seed=None).validate([3, 3, 5, 6, 1, 1])  # type: ignore[arg-type]
    with pytest.raises(PlanMismatchError, match=message):
        damaged(change).validate([3, 3, 5, 6, 1, 1])


def test_lower_bound_knows_more_than_the_sum():
    """Three items over half a pack need three packs, though their sum would fit two."""
    assert lower_bound(Histogram.of(np.array([5, 5, 5])), capacity=8) == 3
    assert lower_bound(Histogram.of(np.array([2, 2, 2])), capacity=8) == 1
    # 6 6 leave room 2 each beside them, 3 3 fit together: Martello and Toth's bound sees it with threshold 3.
    assert lower_bound(Histogram.of(np.array([6, 6, 3, 3, 3])), capacity=8) == 4


def test_a_plan_is_a_sequence_of_packs():
    """``plan[0]`` was a TypeError, and a slice needed a loop."""
    plan = plan_packs([3, 3, 5, 6, 1, 1], capacity=7, seed=None)
    assert plan[0] == plan.pack(0) == next(iter(plan))
    assert plan[-1] == [(0, 0, 3), (1, 0, 3), (5, 0, 1)]
    assert plan[1:] == [plan.pack(1), plan.pack(2)]
    assert plan[5:] == []
    with pytest.raises(IndexError, match="pack 3 is not in 0 … 2"):
        plan[3]
