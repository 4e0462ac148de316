"""Rows and batcher of TRL, compared with TRL's own if installed."""

import inspect
import warnings
from collections import defaultdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from brimful.errors import SettingsError  # noqa: E402
from brimful.rl.compat.trl import TokenBudgetBatcher, TreeRow  # noqa: E402


def rollout(ids, mask, group=0):
    length = len(ids)
    return {
        "input_ids": torch.tensor(ids),
        "completion_mask": torch.tensor(mask),
        "old_log_probs": -torch.rand(length, generator=torch.Generator().manual_seed(length)),
        "advantage": 0.1 * length + group,
        "group_id": group,
        "metrics": {},
    }


IDS = st.lists(st.integers(0, 2), min_size=1, max_size=9)
ROLLOUTS = st.lists(
    IDS.flatmap(
        lambda ids: st.builds(
            rollout, st.just(ids), st.lists(st.integers(0, 1), min_size=len(ids), max_size=len(ids)), st.integers(0, 3)
        )
    ),
    min_size=1,
    max_size=14,
)
"""Rollouts of which many share, some are equal, and some end where others go on."""


def groups_of_rollouts(prompts, answers):
    """Answers to prompts, of random lengths; the answers to a prompt are a group."""
    rng = np.random.default_rng(prompts)
    samples = []
    for group in range(prompts):
        prompt = rng.integers(0, 99, rng.integers(20, 60)).tolist()
        for _ in range(answers):
            answer = rng.integers(0, 99, rng.integers(1, 30)).tolist()
            samples.append(rollout(prompt + answer, [0] * len(prompt) + [1] * len(answer), group))
    return samples


@pytest.fixture(scope="module")
def theirs():
    """TRL's module of rows."""
    return pytest.importorskip("trl.experimental.async_grpo.packing", exc_type=ImportError)


@given(rollouts=ROLLOUTS, budget=st.integers(0, 60))
def test_rows_are_those_of_trl(theirs, rollouts, budget):
    """Equal in every element: the order of the row, its segments and paths, each target of each sample."""
    one, other = theirs.TreeRow(), TreeRow()
    for sample in rollouts:
        assert one.fits(sample, budget) == other.fits(sample, budget)
        one.add(sample)
        other.add(sample)
        assert one.tokens == other.tokens.tolist()
        assert (one.groups, one.trained, one.load) == (other.groups, other.trained, other.load)
    assert one.samples == other.samples
    expected, packed = one.pack(), other.pack()
    assert list(expected) == list(packed)
    for name, tensor in expected.items():
        assert tensor.dtype == packed[name].dtype, name
        assert torch.equal(tensor, packed[name]), name


@pytest.mark.parametrize("batcher", ["TokenBudgetBatcher", "FixedCountBatcher"])
def test_the_batchers_of_trl_make_the_same_rows_of_ours(batcher, monkeypatch):
    """They ask rows what fits and what they cost; a batch of a trainer with our rows is the same batch."""
    trainer = pytest.importorskip("trl.experimental.async_grpo.async_grpo_trainer", exc_type=ImportError)
    if not hasattr(trainer, "TreeRow"):
        pytest.skip("this TRL makes no trees")
    samples = groups_of_rollouts(prompts=12, answers=4)
    arguments = (2, 150, defaultdict(list)) if batcher == "TokenBudgetBatcher" else (2, 8)
    batches = []
    for kind in (trainer.TreeRow, TreeRow):
        monkeypatch.setattr(trainer, "TreeRow", kind)
        rows = [row for rows in getattr(trainer, batcher)(samples, *arguments) for row in rows]
        batches.append([{name: tensor.tolist() for name, tensor in row.pack().items()} for row in rows])
    assert len(batches[0]) > 5
    assert batches[0] == batches[1]


def test_the_collator_of_trl_takes_our_rows():
    """Its batch and its metrics are the same as with its own rows."""
    trainer = pytest.importorskip("trl.experimental.async_grpo.async_grpo_trainer", exc_type=ImportError)
    if not hasattr(trainer, "TreeRow"):
        pytest.skip("this TRL makes no trees")
    samples = [rollout([5, 6, 7, 8], [0, 0, 1, 1]), rollout([5, 6, 7, 9], [0, 0, 1, 1]), rollout([3, 4], [0, 1], 1)]
    batches = []
    for kind in (trainer.TreeRow, TreeRow):
        rows = [kind(), kind()]
        for number, sample in enumerate(samples):
            rows[number // 2].add(sample)
        collator = trainer.DataCollatorForRollout(0, num_processes=2, metrics=defaultdict(list), token_budget=8)
        batches.append((collator([rows]), collator.metrics))
    (expected, their_metrics), (batch, metrics) = batches
    assert metrics == their_metrics
    assert list(batch) == list(expected)
    assert all(torch.equal(batch[name], expected[name]) for name in expected)


def flat_rollouts(lengths):
    """Rollouts that share nothing; each is a group."""
    return [
        rollout([10 * number + place for place in range(length)], [1] * length, number)
        for number, length in enumerate(lengths)
    ]


def test_the_batcher_of_trl():
    """Rows within the budget, none empty; too long ones are dropped and counted, too few wait."""
    metrics: dict[str, list[float]] = {}
    batcher = TokenBudgetBatcher(flat_rollouts([3, 9, 5, 6, 1, 1, 2]), 2, 8, metrics, window=4)
    with pytest.warns(UserWarning, match="exceeds token_budget=8"):
        batches = list(batcher)
    assert metrics == {"batch/dropped_oversize_total": [1.0]}
    assert all(len(rows) == 2 for rows in batches)
    assert sum(len(row.samples) for rows in batches for row in rows) == 6
    assert all(0 < len(row.tokens) <= 8 for rows in batches for row in rows)
    with pytest.warns(UserWarning, match="1 rollouts are too few for 2 rows"):
        assert list(TokenBudgetBatcher(flat_rollouts([3]), 2, 8, {})) == []


@pytest.mark.parametrize("ranks", [1, 2, 3, 7])
@pytest.mark.parametrize("window", [1, 4, 16])
def test_an_empty_rollout_loses_no_other(ranks, window):
    """Without it one empty rollout kept every later window from being planned, and the samples of a stream piled up."""
    metrics: dict[str, list[float]] = {}
    lengths = [int(length) for length in np.random.default_rng(window).integers(1, 9, 301)]
    lengths[5] = 0
    taken = []

    def stream():
        for sample in flat_rollouts(lengths):
            taken.append(sample)
            yield sample

    served = []
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for rows in TokenBudgetBatcher(stream(), ranks, 8, metrics, window=window):
            assert [bool(row.samples) for row in rows] == [True] * ranks
            served += [sample["group_id"] for row in rows for sample in row.samples]
            assert len(taken) - len(served) <= window + 2 * ranks, "the window grows"
    assert str(caught[0].message) == "a rollout of 0 tokens is empty and is dropped"
    assert metrics == {"batch/dropped_empty_total": [1.0]}
    assert len(set(served)) == len(served) > 300 - ranks


def test_a_window_of_no_sample_is_refused():
    with pytest.raises(SettingsError, match="window"):
        TokenBudgetBatcher([], 1, 8, {}, window=0)


@pytest.mark.parametrize("answers", [1, 8])
def test_rows_are_fewer_than_those_of_trl(answers):
    """Each sample is in one row, and rows keep both limits: of tokens, shared ones once, and of targets."""
    trainer = pytest.importorskip("trl.experimental.async_grpo.async_grpo_trainer", exc_type=ImportError)
    samples = groups_of_rollouts(prompts=640 // answers, answers=answers)
    theirs = [row for rows in trainer.TokenBudgetBatcher(samples, 4, 300, defaultdict(list)) for row in rows]
    batches = list(TokenBudgetBatcher(samples, 4, 300, {}))
    rows = [row for batch in batches for row in batch]
    assert sorted(id(sample) for row in rows for sample in row.samples) == sorted(map(id, samples))
    arrival = {id(sample): number for number, sample in enumerate(samples)}
    for row in rows:
        numbers = [arrival[id(sample)] for sample in row.samples]
        assert numbers == sorted(numbers)
        assert 0 < len(row.tokens) <= 300
        assert row.trained <= 300
    # TRL leaves out the rows that are open at the end of the stream.
    assert len(rows) < len(theirs)


def test_equal_rollouts_are_in_several_rows():
    """They share all tokens, and no target: without a limit of targets a row of them would never be full."""
    ids = list(range(20))
    rows = [row for (row,) in TokenBudgetBatcher([rollout(ids, [0] * 10 + [1] * 10) for _ in range(6)], 1, 30, {})]
    assert [row.tokens.tolist() for row in rows] == [ids] * 2
    assert [row.trained for row in rows] == [30] * 2


@given(ROLLOUTS, st.integers(9, 30), st.integers(1, 3))
def test_no_row_exceeds_a_limit(rollouts, budget, ranks):
    """Not even where samples end within others, and are repeated by TRL's form of the tree."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        batches = list(TokenBudgetBatcher(rollouts, ranks, budget, {}))
    assert all(row.samples for rows in batches for row in rows)
    for rows in batches:
        for row in rows:
            assert len(row.pack()["input_ids"]) == len(row.tokens) <= budget
            assert row.trained <= budget


def test_signatures_are_those_of_trl():
    trainer = pytest.importorskip("trl.experimental.async_grpo.async_grpo_trainer", exc_type=ImportError)

    def names_of(function):
        return list(inspect.signature(function).parameters)

    assert names_of(trainer.TokenBudgetBatcher) == names_of(TokenBudgetBatcher)[:4]
    if hasattr(trainer, "TreeRow"):
        for name in ("__init__", "fits", "add", "pack"):
            assert names_of(getattr(trainer.TreeRow, name)) == names_of(getattr(TreeRow, name))
