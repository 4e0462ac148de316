"""Tokens are found in tensors of any layout, and losses in outputs of any form."""

import itertools
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


def rows_by_layout(tensor):
    """Tokens of two rows of three, by the first dimensions alone."""
    size = tuple(tensor.shape)
    if size[:2] == (3, 2):
        return tensor.transpose(0, 1).reshape(2, 3, -1)
    is_other = size[:2] in ((2, 3), (1, 6)) or (size[0] == 6 and len(size) > 1)
    return tensor.reshape(2, 3, -1) if is_other else None


@pytest.mark.parametrize("number", [1, 2, 3])
def test_layouts(number):
    """A layout that is not known has no tokens, and no numbers that are not of a model."""
    for size in itertools.product(range(1, 8), repeat=number):
        rows, due = GRID.rows_of(numbers(*size)), rows_by_layout(numbers(*size))
        assert (rows is None) == (due is None), size
        assert rows is None or due is None or torch.equal(rows, due), size
        assert GRID.rows_of(numbers(*size).long()) is None
    rows = GRID.rows_of(numbers(2, 3, 2, 2))
    assert rows is not None
    assert torch.equal(rows, numbers(2, 3, 4))


@pytest.mark.parametrize("columns", range(1, 9))
def test_media_take_as_many_columns_each(columns):
    """A token moved if any column of it did; rows that cannot all grow so have no tokens."""
    for places in itertools.product([False, True], repeat=6):
        is_medium = np.array(places).reshape(2, 3)
        grid = TokenGrid((2, 3), is_medium)
        first, second = is_medium.sum(axis=1).tolist()
        grows = first == second > 0 and columns > 3 and (columns - 3) % first == 0
        assert (grid.rows_of(numbers(2, columns, 2)) is not None) == (grows or columns == 3)
        if grows:
            values = numbers(2, columns)
            sizes = (1 + (columns - 3) // first * is_medium).tolist()
            parts = [row.split(size) for row, size in zip(values, sizes, strict=True)]
            assert grid.by_token(values).tolist() == [[part.max().item() for part in row] for row in parts]


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
        {"hidden": torch.zeros(2, 3, 8), "logits": logits, "loss": loss, "empty": torch.zeros(0)},
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
    for size, vocab, is_read in ((6, 8, False), (4, None, False), (5, None, True)):
        read = outcome_of(logits[..., :size], TARGETS, GRID, vocab).losses
        assert (read is not None) is is_read, "hidden states are not logits"
    assert outcome_of({"log_probs": loss}, TARGETS, GRID, 8).losses is None
    one_row = outcome_of({"log_probs": torch.tensor([[-1.0, -2]])}, TARGETS[:1], TokenGrid((1, 3)), 8)
    np.testing.assert_array_equal(one_row.losses, [[1, 2, np.nan]])


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


@pytest.mark.parametrize(("channels", "num_bytes"), [(2, 2 * 4 * 3), (2, 3 * 4 * 3 - 1), (1, 1)])
@pytest.mark.parametrize("rows", [[0], [1, 0]])
def test_memory_is_bounded(monkeypatch, channels, num_bytes, rows):
    """By all layers and rows; one channel is kept in any case."""
    layers = {name: nn.Linear(4, 100) for name in "abc"}
    monkeypatch.setattr("brimful.doctor.probing.recorder._MAX_BYTES", num_bytes * len(rows) * len(layers))
    with recording(layers, GRID, rows) as result:
        layers["a"](numbers(2, 3, 4))
    assert result.states[0].values.shape == (len(rows), 3, channels)


def test_what_tells_a_layer_where_samples_begin_is_kept():
    """Integers and masks of pairs, and no hidden states: of these alone a report says that boundaries got lost."""

    class Layer(nn.Module):
        def forward(self, x, *words, mask):
            return x

    layer, mask, places = Layer(), numbers(2, 1, 3, 3), numbers(2, 3).long()
    with recording({"a": layer}, GRID, [0]) as result:
        layer(numbers(2, 3, 4), places, numbers(2, 2, 2), numbers(2, 4, 3), mask=mask)
    assert [id(value) for value in result.given["a"]] == [id(places), id(mask)]


def test_log_probabilities_of_all_tokens_are_logits():
    """Under a name that other models give to the log-probabilities of the targets."""
    logits = torch.randn(2, 3, 8, generator=torch.Generator().manual_seed(0))
    outcome = outcome_of({"log_probs": logits.log_softmax(-1)}, TARGETS, GRID, 8)
    assert outcome.losses is not None
    np.testing.assert_allclose(outcome.losses, expected(logits), rtol=1e-5)
