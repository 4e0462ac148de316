"""``plan_context_parallel``: who shares a sample with whom, within tokens and equal in work."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import CostModel
from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError
from brimful.rl import plan_context_parallel
from brimful.rl.context_parallel import occupy_all_ranks
from tests.plan.forms import use

SQUARES = CostModel(linear=0, quadratic=1, tile=1)


def check(plan, lengths, *, capacity, ranks):
    """Every law: once, tokens within the limit, no rank empty, degrees powers of two on neighboring ranks."""
    groups = plan.sample_id_groups
    assert len(groups) == plan.num_micro_batches
    found = {}
    for number, by_rank in enumerate(groups):
        assert len(by_rank) == ranks
        tokens = np.zeros(ranks)
        for rank, samples in enumerate(by_rank):
            assert samples, "a rank without work"
            for sample in samples:
                found.setdefault(sample, []).append((number, rank))
        for rank, samples in enumerate(by_rank):
            degrees = {sum(sample in other for other in by_rank) for sample in samples}
            assert len(degrees) == 1, "one rank with two groups"
            degree = degrees.pop()
            tokens[rank] = sum(lengths[s] if degree == 1 else 2 * -(-lengths[s] // (2 * degree)) for s in samples)
        assert tokens.max() <= capacity
        assert tokens.tolist() == plan.tokens[number].tolist()
    assert sorted(found) == list(range(len(lengths)))
    for sample, places in found.items():
        numbers, shared = {number for number, _ in places}, [rank for _, rank in places]
        assert len(numbers) == 1, "a sample in two micro-batches"
        degree = len(shared)
        assert degree & (degree - 1) == 0
        assert shared == list(range(shared[0], shared[0] + degree))
        assert shared[0] % degree == 0
        assert degree == plan.degree_of[sample]
    assert plan.imbalance == pytest.approx(plan.costs.max(axis=1).sum() / (plan.costs.sum() / ranks))
    for rank in range(ranks):
        assert [sorted(by_rank[rank]) for by_rank in groups] == [rows.tolist() for rows in plan.micro_batches(rank)]


def test_five_lengths():
    plan = plan_context_parallel([16, 4, 4, 3, 1], max_tokens_per_rank=8, world_size=4, slack=0.2)
    assert plan.sample_id_groups == [[[0], [0], [1, 3], [2, 4]]]
    check(plan, [16, 4, 4, 3, 1], capacity=8, ranks=4)


@pytest.mark.parametrize("form", ["compiled", "plain"])
@given(
    lengths=st.lists(st.integers(16, 592), min_size=1, max_size=60),
    capacity=st.sampled_from([75, 100, 256]),
    ranks=st.sampled_from([8, 16]),
    slack=st.sampled_from([0.0, 0.02, 0.5]),
)
def test_laws(form, lengths, capacity, ranks, slack):
    with pytest.MonkeyPatch.context() as monkeypatch:
        use(form, monkeypatch)
        plan = plan_context_parallel(lengths, max_tokens_per_rank=capacity, world_size=ranks, cost=SQUARES, slack=slack)
    check(plan, lengths, capacity=capacity, ranks=ranks)


@pytest.mark.parametrize("form", ["compiled", "plain"])
@given(
    lengths=st.lists(st.integers(16, 290), min_size=4, max_size=60),
    capacity=st.sampled_from([75, 100, 256]),
    ranks=st.sampled_from([6, 7, 12, 24]),
)
def test_worlds_that_are_no_power_of_two(form, lengths, capacity, ranks):
    """Three nodes of eight are a world of 24: a plan keeps every law, or is refused by name where samples do not come out."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        use(form, monkeypatch)
        # A micro-batch of fewer groups than its ranks have powers of two cannot occupy them all.
        try:
            plan = plan_context_parallel(lengths, max_tokens_per_rank=capacity, world_size=ranks, cost=SQUARES)
        except InvalidLengthsError as error:
            assert "a sample is shared by a power of two of ranks" in str(error)  # noqa: PT017
            return
    check(plan, lengths, capacity=capacity, ranks=ranks)


def test_a_sample_alone_is_shared_by_four_of_six_ranks_and_another_by_two():
    """6 = 4 + 2: two samples are enough for six ranks, whichever groups they begin in."""
    plan = plan_context_parallel([16, 8], max_tokens_per_rank=8, world_size=6)
    assert plan.sample_id_groups == [[[0], [0], [0], [0], [1], [1]]]


@pytest.mark.parametrize(
    ("samples", "ranks", "largest"),
    [(1024, 64, 131_072), (4096, 128, 262_144), (1024, 24, 65_536), (2048, 96, 131_072)],
)
@pytest.mark.parametrize("spread", [1.0, 1.5])
def test_ranks_of_long_samples_have_equal_work(samples, ranks, largest, spread):
    """Lengths from chats to books; within 3 % of equal, and few micro-batches more than tokens alone need."""
    lengths = np.random.default_rng(0).lognormal(np.log(4000), spread, samples).clip(64, largest).astype(np.int64)
    plan = plan_context_parallel(lengths, max_tokens_per_rank=16384, world_size=ranks, cost=SQUARES)
    assert plan.imbalance <= 1.03
    assert plan.num_micro_batches <= 2 * int(lengths.sum()) / (ranks * 16384)
    assert int(plan.tokens.max()) <= 16384


def test_both_forms_share_alike():
    lengths = np.random.default_rng(5).integers(16, 5000, 300)
    prints = []
    for form in ("compiled", "plain"):
        with pytest.MonkeyPatch.context() as monkeypatch:
            use(form, monkeypatch)
            prints.append(plan_context_parallel(lengths, max_tokens_per_rank=999, world_size=16).fingerprint)
    assert prints[0] == prints[1]


@pytest.mark.parametrize(
    ("lengths", "settings", "error", "words"),
    [
        ([40], {}, OversizedSampleError, r"longer than the 32 tokens that 4 ranks hold together: sample 0 \(40\)"),
        ([3], {}, InvalidLengthsError, "sample 0 of 3 tokens would be shared by 4 ranks"),
        ([8], {"world_size": 6}, InvalidLengthsError, "some of 6 ranks have no sample of 1.* world_size=4"),
        ([40, 8], {"world_size": 6}, OversizedSampleError, r"longer than the 32 tokens that 4 ranks hold together"),
        ([8], {"slack": 2}, SettingsError, "slack"),
        ([8], {"max_tokens_per_rank": 1}, SettingsError, "max_tokens_per_rank must be from 2 to 2,147,483,647"),
        ([8], {"max_tokens_per_rank": 2**31}, SettingsError, "max_tokens_per_rank must be from 2 to 2,147,483,647"),
        ([8], {"world_size": 0}, SettingsError, "world_size must be a whole number of at least 1"),
        ([], {}, InvalidLengthsError, "no lengths"),
    ],
)
def test_what_cannot_be_is_refused(lengths, settings, error, words):
    with pytest.raises(error, match=words):
        plan_context_parallel(lengths, **{"max_tokens_per_rank": 8, "world_size": 4, **settings})


@given(
    lengths=st.lists(st.integers(1, 40), min_size=1, max_size=40),
    capacity=st.sampled_from([10, 16]),
    ranks=st.sampled_from([4, 8]),
)
def test_samples_of_a_few_tokens(lengths, capacity, ranks):
    """Shared by more ranks than it has tokens, a sample leaves a rank with padding alone: it gets company, or is refused."""
    try:
        plan = plan_context_parallel(lengths, max_tokens_per_rank=capacity, world_size=ranks, cost=SQUARES)
    except InvalidLengthsError:
        assert sum(lengths) < 4 * ranks * capacity
        return
    assert (plan.degree_of <= np.array(lengths)).all()
    check(plan, lengths, capacity=capacity, ranks=ranks)


def test_a_last_sample_gets_company():
    """Three tokens on four ranks would leave one of them without: others give it their shortest samples."""
    placement = np.array([[0, 0, 0, 0, 1, 0, 0], [0, 1, 2, 3, 0, 2, 3], [1, 1, 1, 1, 4, 1, 1]])
    occupy_all_ranks(np.array([9, 9, 8, 8, 3, 2, 2]), placement, capacity=16, num_ranks=4)
    micro_batch, group, degree = placement
    assert micro_batch.tolist() == [0, 0, 0, 0, 1, 0, 1]
    assert degree.tolist() == [1, 1, 1, 1, 2, 1, 2]
    assert group[4:].tolist() == [0, 2, 1]
