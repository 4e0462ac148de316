"""The loss of a pair by hand, and what does not sum over pairs is refused."""

import math

import pytest

torch = pytest.importorskip("torch")

from brimful.collate.loss_torch import SegmentLosses, per_sample_loss  # noqa: E402
from brimful.errors import CollateError, SettingsError  # noqa: E402
from brimful.preferences.losses import PAIR_LOSSES, preference_loss  # noqa: E402

SEGMENTS = SegmentLosses(torch.tensor([2.0, 4.0]), torch.tensor([2, 4]), torch.tensor([0, 0]))


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def softplus(x):
    return math.log1p(math.exp(x))


BY_HAND = {  # log ratios 0.75 and -1.5 of 2 and 4 targets, β = 0.4: times β 0.3 and -0.6, together 0.9
    "sigmoid": softplus(-0.9),
    "robust": (0.8 * softplus(-0.9) - 0.2 * softplus(0.9)) / 0.6,
    "hinge": 0.1,
    "ipo": (0.375 + 0.375 - 1 / 0.8) ** 2,
    "sigmoid_norm": softplus(-0.4 * 0.75),
    "apo_zero": 1 - sigmoid(0.3) + sigmoid(-0.6),
    "apo_down": sigmoid(0.3) + 1 - sigmoid(0.9),
    "nca_pair": softplus(-0.3) + 0.5 * softplus(0.3) + 0.5 * softplus(-0.6),
    "bco_pair": softplus(-0.3) + softplus(-0.6),
    "sppo_hard": (0.75 - 1.25) ** 2 + (-1.5 + 1.25) ** 2,
}


@pytest.mark.parametrize("loss_type", PAIR_LOSSES)
def test_one_pair_by_hand(loss_type):
    smoothing = 0.2 if loss_type == "robust" else 0.0
    options = {"beta": 0.4, "loss_type": loss_type, "label_smoothing": smoothing}
    result = preference_loss(SEGMENTS, [[0, 1]], [[-2.75, -2.5]], **options)
    assert float(result.losses[0]) == pytest.approx(BY_HAND[loss_type], abs=1e-6)
    assert (float(result.chosen_rewards[0]), float(result.rejected_rewards[0])) == pytest.approx((0.3, -0.6))
    assert float(result.accuracy) == 1.0


def test_a_pair_of_equal_rewards_is_no_hit_and_no_target_divides_by_one():
    """Segments without targets, of a row that was cut to nothing, have a loss all the same."""
    none = SegmentLosses(torch.tensor([0.0, 0.0]), torch.tensor([0, 0]), torch.tensor([0, 0]))
    result = preference_loss(none, [[0, 1]], [[-1.0, -1.0]], beta=1.0, loss_type="ipo")
    assert (float(result.losses[0]), float(result.accuracy)) == (0.25, 0.0)


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
    with pytest.raises(SettingsError, match='"aot" is unknown: use one of sigmoid, robust'):
        preference_loss(SEGMENTS, [[0, 1]], [[0.0, 0.0]], loss_type="aot")
    with pytest.raises(SettingsError, match='"dpo" is unknown: use one of sigmoid, robust'):
        preference_loss(SEGMENTS, [[0, 1]], [[0.0, 0.0]], loss_type="dpo")
    with pytest.raises(SettingsError, match="must be above 0 and is 0"):
        preference_loss(SEGMENTS, [[0, 1]], [[0.0, 0.0]], beta=0)
    with pytest.raises(SettingsError, match=r'for loss_type="robust", and is 0.1 for sigmoid'):
        preference_loss(SEGMENTS, [[0, 1]], [[0.0, 0.0]], label_smoothing=0.1)
    for share in (-0.1, 0.5):
        with pytest.raises(SettingsError, match=rf"a share from 0 to below 0\.5, .* is {share} for robust"):
            preference_loss(SEGMENTS, [[0, 1]], [[0.0, 0.0]], loss_type="robust", label_smoothing=share)
    with pytest.raises(CollateError, match="two numbers for each of 1 pairs"):
        preference_loss(SEGMENTS, [[0, 1]], [0.0])
