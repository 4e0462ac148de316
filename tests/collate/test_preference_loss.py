"""The loss of a pair by hand, and what is no sum over pairs is refused."""

import math

import pytest

torch = pytest.importorskip("torch")

from brimful.collate.loss_torch import SegmentLosses, per_sample_loss  # noqa: E402
from brimful.collate.preference_loss import PAIR_LOSSES, preference_loss  # noqa: E402
from brimful.errors import CollateError, SettingsError  # noqa: E402

SEGMENTS = SegmentLosses(torch.tensor([2.0, 4.0]), torch.tensor([2, 4]), torch.tensor([0, 0]))
BY_HAND = {  # log ratios 1 and -1, β = 1
    "sigmoid": math.log1p(math.exp(-2)),
    "robust": math.log1p(math.exp(-2)),
    "hinge": 0.0,
    "ipo": (1 / 2 + 1 / 4 - 1 / 2) ** 2,
    "sigmoid_norm": math.log1p(math.exp(-3 / 4)),
}


@pytest.mark.parametrize("loss_type", BY_HAND)
def test_one_pair_by_hand(loss_type):
    result = preference_loss(SEGMENTS, [[0, 1]], [[-3.0, -3.0]], beta=1.0, loss_type=loss_type)
    assert float(result.losses[0]) == pytest.approx(BY_HAND[loss_type], abs=1e-6)
    assert (float(result.chosen_rewards[0]), float(result.rejected_rewards[0])) == (1.0, -1.0)
    assert float(result.accuracy) == 1.0


@pytest.mark.parametrize("loss_type", PAIR_LOSSES)
def test_sides_are_not_alike(loss_type):
    """A loss that does not change when chosen and rejected are swapped would hide a swap."""
    right = preference_loss(SEGMENTS, [[0, 1]], [[-3.0, -3.0]], beta=0.5, loss_type=loss_type)
    swapped = preference_loss(SEGMENTS, [[1, 0]], [[-3.0, -3.0]], beta=0.5, loss_type=loss_type)
    assert float(right.losses) < float(swapped.losses)


@pytest.mark.parametrize("loss_type", PAIR_LOSSES)
def test_a_micro_batch_without_pairs_has_a_loss_of_zero(loss_type):
    """A pack that fills the last step of a rank: its backward must run, as every rank's does."""
    logits = torch.zeros(4, 3, requires_grad=True)
    segments = per_sample_loss(logits, torch.full((4,), -100), [0, 2, 4])
    loss = preference_loss(segments, [], torch.zeros(0, 2), loss_type=loss_type).losses.sum()
    loss.backward()
    assert float(loss.detach()) == 0.0
    assert float(logits.grad.abs().sum()) == 0.0


def test_a_loss_of_the_micro_batch_is_refused():
    with pytest.raises(SettingsError, match="sorts the pairs of a micro-batch, so that packing would change it"):
        preference_loss(SEGMENTS, [[0, 1]], [[0.0, 0.0]], loss_type="aot")
    with pytest.raises(SettingsError, match='"dpo" is unknown: use one of sigmoid, robust'):
        preference_loss(SEGMENTS, [[0, 1]], [[0.0, 0.0]], loss_type="dpo")
    with pytest.raises(SettingsError, match="must be above 0 and is 0"):
        preference_loss(SEGMENTS, [[0, 1]], [[0.0, 0.0]], beta=0)
    with pytest.raises(SettingsError, match="is for"):
        preference_loss(SEGMENTS, [[0, 1]], [[0.0, 0.0]], label_smoothing=0.1)
    with pytest.raises(CollateError, match="two numbers for each of 1 pairs"):
        preference_loss(SEGMENTS, [[0, 1]], [0.0])
