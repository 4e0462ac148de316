"""``StepPlan``: order of arrival, weights over micro-batches and ranks, one plan for both passes."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.collate import Padding, lay_out
from brimful.errors import SettingsError
from brimful.rl import SampleColumn, pack_step, plan_step
from brimful.rl.step_plan import LossMean
from tests.plan.reference import step_loss

LENGTHS = np.array([7, 3, 5, 6, 2, 4, 8, 1])
TARGETS = np.array([4, 1, 0, 6, 2, 3, 8, 0])


def means(losses, targets, constant):
    """The four means as their papers write them, on one device and in one batch."""
    sums = [sample[:count].sum() for sample, count in zip(losses, targets, strict=True)]
    counted = [(total, count) for total, count in zip(sums, targets, strict=True) if count]
    return {
        "token-mean": sum(sums) / targets.sum(),
        "seq-mean-token-mean": np.mean([total / count for total, count in counted]),
        "seq-mean-token-sum": np.mean([total for total, _ in counted]),
        "constant": sum(sums) / constant,
    }


@given(ranks=st.integers(1, 3), seed=st.integers(0, 99))
def test_weights_add_up_to_the_mean_of_the_whole_step(ranks, seed):
    """Each micro-batch divided by its own count would weigh a short one as much as a long one."""
    generator = np.random.default_rng(seed)
    losses = [generator.normal(size=length) for length in LENGTHS]
    step = plan_step(LENGTHS, capacity=8, dp_world_size=ranks, loss_tokens=TARGETS)
    for mean, expected in means(losses, TARGETS, constant=40.0).items():
        constant = 40.0 if mean == "constant" else None
        weights = step.weights(mean, constant=constant)
        total = sum(
            weights[sample] * losses[sample][: TARGETS[sample]].sum()
            for rank in range(ranks)
            for rows in step.micro_batches(rank)
            for sample in rows.tolist()
        )
        assert total == pytest.approx(expected)
        # Gradients that are averaged over ranks are smaller by their number.
        assert step.weights(mean, constant=constant, scale=ranks).tolist() == pytest.approx((weights * ranks).tolist())


def test_the_means_are_those_of_verl():
    """The same names, so the same numbers: on one rank and one micro-batch, where verl needs no counts of others."""
    core = pytest.importorskip("verl.trainer.ppo.core_algos")
    torch = pytest.importorskip("torch")
    mask = torch.arange(8)[None] < torch.tensor(TARGETS)[:, None]
    losses = torch.rand(len(TARGETS), 8, dtype=torch.float64)
    step = plan_step(LENGTHS, capacity=100, dp_world_size=1, loss_tokens=TARGETS)
    for mean in LossMean:
        if mean is not LossMean.CONSTANT:
            ours = float((torch.tensor(step.weights(mean))[:, None] * losses * mask).sum())
            assert ours == pytest.approx(float(core.agg_loss(losses, mask.double(), mean.value)), rel=1e-6)


@given(seed=st.integers(0, 99), ranks=st.integers(1, 3))
def test_the_means_are_those_of_the_formulae(seed, ranks):
    """With prompts, samples without a target, and packs: weights of tokens in all micro-batches add up to the loss of a step."""
    generator = np.random.default_rng(seed)
    masks = [generator.random(length) < 0.6 for length in LENGTHS]
    for mask in masks:
        mask[0] = False  # nothing predicts the first token
    losses = [generator.random(length) for length in LENGTHS]
    if not any(mask.any() for mask in masks):
        return
    step = plan_step(LENGTHS, capacity=9, dp_world_size=ranks, loss_tokens=[int(mask.sum()) for mask in masks])
    for mean in LossMean:
        constant = 40.0 if mean is LossMean.CONSTANT else None
        weights = step.weights(mean, constant=constant)
        columns = [SampleColumn("losses", losses)]
        total = 0.0
        for rank in range(ranks):
            packs = pack_step(
                step,
                [np.ones(length) for length in LENGTHS],
                dp_rank=rank,
                loss_masks=masks,
                columns=columns,
                weights=weights,
            )
            for pack, extras in packs:
                batch = lay_out([pack], extras=[extras], padding=Padding(segment_multiple_of=4))
                total += float((batch.target_weights * batch.column("losses").values).sum())
        assert total == pytest.approx(step_loss(losses, masks, mean.value, 40.0), rel=1e-5)


@pytest.mark.parametrize(
    ("mean", "constant", "words"),
    [("mean", None, "token-mean, seq-mean"), ("constant", None, "give both or neither"), ("token-mean", 3, "no other")],
)
def test_a_mean_that_is_none(mean, constant, words):
    with pytest.raises(SettingsError, match=words):
        plan_step([3], capacity=8, dp_world_size=1).weights(mean, constant=constant)


def test_a_plan_is_not_changed_by_its_users():
    """Positions are handed out as copies; what the plan holds cannot be written."""
    step = plan_step(LENGTHS, capacity=8, dp_world_size=2)
    step.micro_batches(0)[0][:] = -1
    step.positions(1)[:] = -1
    assert int(step.order.min()) == 0
    for array in (step.order, step.offsets, step.tokens, step.costs, step.restore):
        with pytest.raises(ValueError, match="read-only"):
            array[...] = 0
    assert step.fingerprint == plan_step(LENGTHS, capacity=8, dp_world_size=2).fingerprint
    assert step.fingerprint != plan_step(LENGTHS[::-1], capacity=8, dp_world_size=2).fingerprint


@pytest.mark.parametrize("rank", [-1, 2, "0"])
def test_a_rank_that_is_none(rank):
    with pytest.raises(SettingsError, match="dp_rank"):
        plan_step(LENGTHS, capacity=8, dp_world_size=2).micro_batches(rank)


def test_ratios_are_exactly_one_at_the_first_inner_step():
    """Old log-probabilities of other micro-batches differ in the last bits, and the clipping of PPO sees them."""
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    generator = np.random.default_rng(0)
    lengths = generator.integers(3, 40, 60)
    samples = [torch.randint(0, 50, (int(length),)) for length in lengths]
    model = torch.nn.Sequential(
        torch.nn.Embedding(50, 32), torch.nn.Linear(32, 64), torch.nn.GELU(), torch.nn.Linear(64, 50)
    )
    step = plan_step(lengths, capacity=128, dp_world_size=2)

    def log_probabilities(rows):
        tokens = torch.cat([samples[row] for row in rows.tolist()])
        return torch.log_softmax(model(tokens), dim=-1).gather(1, tokens[:, None])[:, 0]

    for rank in range(2):
        with torch.no_grad():
            before = [log_probabilities(rows) for rows in step.micro_batches(rank)]
        for old, rows in zip(before, step.micro_batches(rank), strict=True):
            assert torch.equal(torch.exp(log_probabilities(rows) - old), torch.ones_like(old))


def test_results_come_back_in_the_order_of_arrival():
    step = plan_step(LENGTHS, capacity=8, dp_world_size=2)
    results = np.concatenate([LENGTHS[rows] * 10 for rank in range(2) for rows in step.micro_batches(rank)])
    assert results[step.restore].tolist() == (LENGTHS * 10).tolist()
