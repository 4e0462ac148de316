"""Tokens are found in tensors of any layout, and losses in outputs of any form."""

from types import SimpleNamespace
from typing import NamedTuple

import numpy as np
import pytest

pytest.importorskip("torch")

import torch
from torch import nn

from brimful.doctor.probing.recorder import (
    LayerState,
    TokenGrid,
    layers_of,
    movement,
    outcome_of,
    recording,
    token_losses,
)
from brimful.verify.setup import targets_loss

GRID = TokenGrid((2, 3))
TARGETS = np.array([[1, 4, -100], [2, -100, -100]])


def numbers(*shape):
    return torch.arange(float(np.prod(shape))).reshape(shape)


@pytest.mark.parametrize(
    "tensor",
    [numbers(2, 3, 4), numbers(2, 3, 4).transpose(0, 1), numbers(6, 4), numbers(1, 6, 4), numbers(2, 3, 2, 2)],
)
def test_layouts(tensor):
    rows = GRID.rows_of(tensor)
    assert rows is not None
    assert torch.equal(rows, numbers(2, 3, 4))


@pytest.mark.parametrize("tensor", [numbers(4), numbers(5, 4), numbers(2, 4, 4), numbers(2, 3, 4).long(), numbers(3)])
def test_other_tensors_have_no_tokens(tensor):
    assert GRID.rows_of(tensor) is None


def test_media_take_several_columns():
    """A token moved if any column of it did."""
    grid = TokenGrid((1, 4), np.array([[False, True, False, True]]))
    assert grid.rows_of(numbers(1, 8, 2)).shape == (1, 8, 2)
    assert grid.rows_of(numbers(1, 7, 2)) is None
    values = torch.tensor([[1.0, 2, 5, 3, 4, 0, 0, 7]])
    assert grid.by_token(values).tolist() == [[1, 5, 4, 7]]


def test_a_part_of_a_row():
    """Sequence parallelism: each rank has every n-th part of the tokens between layers."""
    grid = TokenGrid((2, 6), part=1, parts=3)
    rows = grid.rows_of(numbers(2, 2, 4))
    assert rows is not None
    assert rows.shape == (2, 2, 4)
    assert grid.by_token(torch.tensor([[1.0, 2]])).tolist() == [[0, 0, 1, 2, 0, 0]]
    assert grid.by_token(torch.ones(1, 6)).tolist() == [[1] * 6], "losses of a whole row"


def test_movement_is_relative():
    before = LayerState("a", torch.tensor([[[3.0, 4], [0, 0], [1, 0]]]))
    after = LayerState("a", torch.tensor([[[3.0, 9], [0, 0], [1, 0]]]))
    assert movement(before, after, TokenGrid((1, 3))).tolist() == [[1, 0, 0]]


class Pair(NamedTuple):
    loss: torch.Tensor
    logits: torch.Tensor


def expected(logits):
    losses = np.full(TARGETS.shape, np.nan)
    for place in zip(*np.nonzero(TARGETS != -100), strict=True):
        row, column = int(place[0]), int(place[1])
        losses[row, column] = float(targets_loss(logits[row, column], TARGETS[row, column : column + 1]))
    return losses


def test_losses_of_all_outputs():
    logits = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    loss = torch.tensor(0.25)
    values = expected(logits)
    for output in (
        logits,
        (loss, logits),
        {"loss": loss, "logits": logits},
        Pair(loss, logits),
        SimpleNamespace(loss=loss, logits=logits),
        {"log_probs": torch.from_numpy(-np.nan_to_num(values)[:, :2])},
        torch.from_numpy(np.nan_to_num(values)),
    ):
        outcome = outcome_of(output, TARGETS, GRID, 8)
        assert outcome.losses is not None
        np.testing.assert_allclose(outcome.losses, values, rtol=1e-5)
        assert outcome.loss in (None, 0.25)
    sums = outcome_of({"loss": loss, "aux_loss": None, "mtp_loss": torch.tensor(3.0)}, TARGETS, GRID, 8)
    assert sums.losses is None
    assert (sums.loss, sums.extra_losses) == (0.25, {"aux_loss": None, "mtp_loss": 3.0})
    assert outcome_of(torch.zeros(2, 3, 4), TARGETS, GRID, 8).losses is None, "hidden states are not logits"


def test_losses_in_chunks_are_the_losses(monkeypatch):
    logits = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    monkeypatch.setattr("brimful.doctor.probing.recorder._LOGITS_OF_A_CHUNK", 16)
    np.testing.assert_allclose(token_losses(logits.to(torch.float64), TARGETS), expected(logits), rtol=1e-5)


def test_layers_are_outside_of_layers():
    model = nn.Module()
    model.body = nn.Module()
    model.body.layers = nn.ModuleDict({"0": nn.ModuleList([nn.Linear(2, 2)]), "1": nn.Linear(2, 2)})
    model.head = nn.Linear(2, 2)
    assert list(layers_of(model)) == ["body.layers.0", "body.layers.1"]
    assert list(layers_of(nn.Sequential(nn.Linear(2, 2)))) == ["0"]
    plain = nn.Module()
    plain.first, plain.second = nn.Linear(2, 2), nn.Linear(2, 2)
    assert list(layers_of(plain)) == ["first", "second"]


def test_shared_layers_are_recorded_at_each_call():
    """A model may run one layer several times."""
    layer = nn.Linear(4, 4)
    with recording({"shared": layer}, GRID, [1]) as result:
        layer(layer(numbers(2, 3, 4)))
        layer(numbers(5, 4))
    assert [state.name for state in result.states] == ["shared", "shared"]
    assert result.states[0].values.shape == (1, 3, 4)
    assert result.dtypes == {torch.float32}
    layer(numbers(2, 3, 4))
    assert len(result.states) == 2, "the hooks are gone"


def test_memory_is_bounded(monkeypatch):
    monkeypatch.setattr("brimful.doctor.probing.recorder._MAX_BYTES", 4 * 3 * 2)
    layer = nn.Linear(4, 100)
    with recording({"wide": layer}, GRID, [0]) as result:
        layer(numbers(2, 3, 4))
    assert result.states[0].values.shape == (1, 3, 2)


def test_a_medium_of_one_token_takes_several_columns_too():
    """Towers that put their rows in the place of one placeholder; more columns than media share are none of tokens."""
    grid = TokenGrid((2, 3), np.array([[False, True, False]] * 2))
    assert grid.rows_of(numbers(2, 5, 2)).shape == (2, 5, 2)
    values = torch.tensor([[1.0, 2, 7, 3, 4], [5, 6, 1, 8, 9]])
    assert grid.by_token(values).tolist() == [[1, 7, 4], [5, 8, 9]]
    assert TokenGrid((1, 3), np.zeros((1, 3), dtype=bool)).rows_of(numbers(1, 5, 2)) is None


def test_log_probabilities_of_all_tokens_are_logits():
    """Under a name that other models give to the log-probabilities of the targets."""
    logits = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    outcome = outcome_of({"log_probs": logits.log_softmax(-1)}, TARGETS, GRID, 8)
    assert outcome.losses is not None
    np.testing.assert_allclose(outcome.losses, expected(logits), rtol=1e-5)
