"""Packs of trees of a step and the way back: a shared token comes home to each sample that passes through it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.collate import Padding, lay_out  # noqa: E402
from brimful.errors import CollateError  # noqa: E402
from brimful.rl import (  # noqa: E402
    SampleColumn,
    find_step_prefixes,
    pack_step,
    plan_step,
    restore_index,
    restore_tokens,
    split_for_context_parallel,
)
from tests.rl.step_forests import UNIT, forest_of_samples  # noqa: E402


def step_of(ids, **settings):
    settings = {"capacity": 8 * UNIT, "dp_world_size": 1} | settings
    return plan_step([len(row) for row in ids], prefixes=find_step_prefixes(ids, least=1), **settings)


def rows_of(step, ids, branch="fork", **arguments):
    collate = PackCollator(dialect="dense_mask", branch=branch, padding=Padding(multiple_of=16))
    packs = pack_step(step, ids, dp_rank=0, **arguments)
    return [collate.rows([features])[0] for features in packs], [collate([features]) for features in packs]


@given(seed=st.integers(0, 10_000), branch=st.sampled_from(["fork", "index"]))
def test_every_value_comes_home(seed, branch):
    """Of tokens; and of predictions, which are at the token before or are terms of the loss."""
    ids = forest_of_samples(seed, samples=10)
    masks = [np.random.default_rng(len(row)).random(len(row)) < 0.5 for row in ids]
    rows, _ = rows_of(step_of(ids), ids, branch, loss_masks=masks)
    home = restore_tokens(rows, [row.input_ids for row in rows])
    assert home.sample_ids.tolist() == list(range(len(ids)))
    assert all((values == row).all() for values, row in zip(home, ids, strict=True))
    if branch == "index":
        terms = restore_tokens(rows, [row.loss_terms.targets for row in rows], predicted=True, fill=-1)
        for values, row, mask in zip(terms, ids, masks, strict=True):
            expected = np.where(mask, row, -1)
            expected[0] = -1
            assert values.tolist() == expected.tolist()
    else:
        depths = [row.position_ids for row in rows]
        for values in restore_tokens(rows, depths, predicted=True, fill=-7):
            assert values.tolist() == [-7, *range(len(values) - 1)]


def test_an_index_carries_gradients():
    ids = [np.array([5, 6, 7]), np.array([5, 6, 8])]
    rows, _ = rows_of(step_of(ids), ids)
    outputs = [torch.zeros(len(row.input_ids), requires_grad=True) for row in rows]
    index = restore_index(rows)
    torch.cat(outputs)[torch.from_numpy(index.values)].sum().backward()
    tokens = restore_tokens(rows, [output.grad.numpy() for output in outputs])
    assert [values.tolist() for values in tokens] == [[2, 1, 1], [2, 1, 1]]  # a place of a fork, 6, is one of each


def test_weights_add_up():
    """A token that several samples train weighs the sum of their weights; the prompt weighs nothing."""
    ids = [np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5]), np.array([1, 2, 3])]
    masks = [np.array([0, 0, 1, 1]), np.array([0, 0, 0, 1]), np.array([0, 0, 1])]
    step = step_of(ids, loss_tokens=[2, 1, 1])
    weights = np.array([0.5, 0.25, 2.0])
    for branch in ("fork", "index"):
        (row,), _ = rows_of(step, ids, branch, loss_masks=masks, weights=weights)
        found = dict(zip(row.labels[row.labels >= 0].tolist(), row.target_weights[row.labels >= 0], strict=True))
        assert found == {3: 2.5, 4: 0.5, 5: 0.25}
    mean = step.weights("token-mean")
    (row,), _ = rows_of(step, ids, loss_masks=masks, weights=mean)
    assert float(row.target_weights.sum()) == pytest.approx(1)


def test_columns_that_agree_are_in_the_row():
    """Advantages differ on the prompt, which has no targets; old log-probabilities agree on the answer that two share."""
    ids = [np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])]
    masks = [np.array([0, 0, 0, 1]), np.array([0, 0, 1, 1])]
    advantages = SampleColumn("advantages", np.array([1.0, -1.0]))
    routes = SampleColumn("routes", [row * 10 for row in ids], place="token")
    for branch in ("fork", "index"):
        (row,), _ = rows_of(step_of(ids), ids, branch, loss_masks=masks, columns=[advantages, routes])
        is_target = row.labels >= 0
        found = dict(zip(row.labels[is_target].tolist(), row.column("advantages").values[is_target], strict=True))
        assert found == {3: -1, 4: 1, 5: -1}
        real = ~row.padding_mask
        assert (row.column("routes").values[real] == 10 * row.input_ids[real]).all()


def test_columns_that_differ_are_refused_by_name():
    ids = [np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])]
    column = SampleColumn("advantages", np.array([1.0, -1.0]))
    with pytest.raises(CollateError, match="column 'advantages': sample 0 and another one share token 1"):
        rows_of(step_of(ids), ids, columns=[column])
    nan = SampleColumn("routes", [np.full(4, np.nan)] * 2, place="token")
    rows_of(step_of(ids), ids, columns=[nan])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ([[1, 2, 3, 4, 9], [1, 2, 3, 5]], "sample 0 has 5 tokens and was planned with 4"),
        ([[1, 2, 3, 4], [1, 7, 3, 5]], "sample 1 has another token 1"),
    ],
    ids=["length", "token"],
)
def test_other_samples_than_planned_are_refused(change, words):
    step = step_of([np.array([1, 2, 3, 4]), np.array([1, 2, 3, 5])])
    with pytest.raises(CollateError, match=words):
        pack_step(step, change, dp_rank=0)


def test_context_parallelism_refuses_trees():
    """Their segments are not samples: a slice of each would lose the branches' trunks."""
    (row,), _ = rows_of(step_of([np.arange(8)] * 2), [np.arange(8)] * 2)
    with pytest.raises(CollateError, match="no layout of context parallelism keeps a branch with its trunk"):
        split_for_context_parallel(row, cp_rank=0, cp_size=2)


def test_a_sample_is_restored_once():
    row = lay_out([features[0] for features in pack_step(step_of([np.array([1, 2])]), [[1, 2]], dp_rank=0)])
    with pytest.raises(CollateError, match="sample 0 is in two segments"):
        restore_index([row, row])


def log_probs(logits, targets):
    return torch.log_softmax(logits.float(), dim=-1).gather(-1, targets[..., None])[..., 0]


@pytest.mark.parametrize("branch", ["fork", "index"])
def test_the_loss_of_rollouts_is_the_one_of_samples_alone(branch):
    """Clipped ratios with an advantage for each sample, turns of a dialogue that two samples train: loss and gradients
    of weights equal each sample alone, and the ratios of the first pass are exactly 1."""
    pytest.importorskip("transformers")
    from brimful.verify.models import tiny_model

    generator = np.random.default_rng(0)
    trunks = [generator.integers(3, 120, 30) for _ in range(3)]
    turns = [np.r_[trunk, generator.integers(3, 120, 7)] for trunk in trunks]
    ids = [np.r_[part, generator.integers(3, 120, 5)] for part in [*turns, *turns, *trunks]]
    masks = [np.arange(len(row)) >= 30 for row in ids]
    advantages = torch.from_numpy(generator.normal(size=len(ids)).astype(np.float32))
    step = step_of(ids, capacity=128, loss_tokens=[int(mask.sum()) for mask in masks])
    weights = torch.from_numpy(step.weights("seq-mean-token-mean").astype(np.float32))
    model = tiny_model("qwen2").eval()

    def loss_of(new, old, sample):
        ratio = torch.exp(new - old)
        clipped = ratio.clamp(0.8, 1.2)
        return -weights[sample] * torch.minimum(ratio * advantages[sample], clipped * advantages[sample]).sum()

    rows, batches = rows_of(step, ids, branch, loss_masks=masks)
    index = restore_index(rows, predicted=True)

    def values_of(batch, row):
        names = ("input_ids", "position_ids", "attention_mask")
        logits = model(**{name: batch[name] for name in names}, use_cache=False).logits[0]
        if branch == "index":
            return log_probs(logits[batch["loss_index"]], batch["loss_targets"])
        following = torch.roll(batch["input_ids"][0], -1)
        return log_probs(logits, following)

    with torch.no_grad():
        old = torch.cat([values_of(*one) for one in zip(batches, rows, strict=True)])
    new = torch.cat([values_of(*one) for one in zip(batches, rows, strict=True)])
    assert torch.equal(torch.exp(new - old), torch.ones_like(new))
    total = torch.zeros(())
    for sample, (places, mask) in enumerate(zip(index, masks, strict=True)):
        chosen = torch.from_numpy(places[mask])
        total = total + loss_of(new[chosen], old[chosen] - 0.1, sample)
    total.backward()
    gradients = {name: one.grad.clone() for name, one in model.named_parameters()}
    model.zero_grad()
    alone = torch.zeros(())
    for sample, (row, mask) in enumerate(zip(ids, masks, strict=True)):
        tokens = torch.from_numpy(row)[None]
        new_alone = log_probs(model(tokens, use_cache=False).logits[0, :-1], tokens[0, 1:])[mask[1:]]
        alone = alone + loss_of(new_alone, new_alone.detach() - 0.1, sample)
    alone.backward()
    assert total.item() == pytest.approx(alone.item(), abs=1e-5)
    for name, one in model.named_parameters():
        assert torch.allclose(gradients[name], one.grad, atol=1e-5), name
