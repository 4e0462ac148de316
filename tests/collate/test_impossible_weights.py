"""A weight, factor or divisor that makes a loss NaN, 0 or its opposite is refused at its setting."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.collate.loss import segment_weights, token_weights  # noqa: E402
from brimful.collate.loss_torch import SegmentLosses, scale_for_ddp  # noqa: E402
from brimful.errors import BrimfulError, CollateError  # noqa: E402
from brimful.integrations.export.energon import energon_mix  # noqa: E402
from brimful.mixtures.source_weights import SourceWeights  # noqa: E402
from brimful.plan.schedule.balance import quantize  # noqa: E402
from brimful.plan.schedule.cost_model import CostModel  # noqa: E402
from brimful.preferences.losses import kto_loss, preference_loss  # noqa: E402
from brimful.rl.step_plan import loss_weights  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402

TARGETS = np.array([4, 1])
LABELS, BOUNDARIES = np.array([-100, 6, 7, -100, 9]), np.array([0, 3, 5], np.int32)
LOSSES = SegmentLosses(torch.tensor([1.0, 2.0]), torch.tensor([1, 1]), torch.tensor([1, 1]))

TAKES = {
    "factor of segments": lambda value: segment_weights(TARGETS, "sample", scale=value),
    "factor of tokens": lambda value: token_weights(LABELS, BOUNDARIES, 2, "sample", scale=value),
    "factor of a step": lambda value: loss_weights(TARGETS, "token-mean", scale=value),
    "divisor of a step": lambda value: loss_weights(TARGETS, "constant", constant=value),
    "weights of segments": lambda value: segment_weights(TARGETS, [1.0, value]),
    "weights of a row": lambda value: PackCollator()(
        [{"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "loss_weights": [0.0, 1.0, value]}]
    ),
    "weights by a function": lambda value: PackCollator(loss_weights=lambda batch: np.full(5, value, np.float32))([toy_pack([3, 2])]),
    "weights of sources": lambda value: SourceWeights([0, 1], [1.0, value]),
    "denominator": lambda value: scale_for_ddp(torch.tensor(2.0), denominator=value, dp_world_size=2),
    "beta of pairs": lambda value: preference_loss(LOSSES, [[0, 1]], [[-1.0, -1.0]], beta=value),
    "weight of KTO": lambda value: kto_loss(LOSSES, [0], [True], [-1.0], kl=0.0, desirable_weight=value),
    "shares of a mix": lambda value: energon_mix({"a": value}, "/nonexistent/mix.yaml"),
    "costs of packs": lambda value: quantize([1.0, value], 2),
    "cost of attention": lambda value: CostModel(linear=1.0, quadratic=value),
}  # fmt: skip
MAY_BE_ZERO = {
    "weights of segments",
    "weights of a row",
    "weights by a function",
    "weights of sources",
    "weight of KTO",
    "costs of packs",
    "cost of attention",
}


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, -1.0, 0.0])
@pytest.mark.parametrize("name", TAKES)
def test_what_no_loss_can_take(name, value):
    if value == 0 and name in MAY_BE_ZERO:
        TAKES[name](value)
        return
    with pytest.raises(BrimfulError):
        TAKES[name](value)


@pytest.mark.parametrize("name", TAKES)
def test_ordinary_numbers_are_taken(name):
    if name == "shares of a mix":
        return  # it writes a file
    TAKES[name](0.5)
    TAKES[name](np.float32(2.0))


def test_a_step_without_targets_has_no_loss():
    """Its denominator is 0, and so is its sum: only a sum that is lost is an error."""
    assert scale_for_ddp(torch.tensor(0.0), denominator=0, dp_world_size=2) == 0
    with pytest.raises(CollateError, match=r"from global_sum, and is 0\.0 for a loss sum of 2"):
        scale_for_ddp(torch.tensor(2.0, requires_grad=True), denominator=0.0, dp_world_size=2)


def test_weights_without_a_target_do_not_count():
    """They are never read, so any number may stand there."""
    weights = [math.nan, 1.0, 1.0]
    batch = PackCollator()([{"input_ids": [1, 2, 3], "labels": [-100, 2, 3], "loss_weights": weights}])
    assert batch["loss_weights"][0, 1:].tolist() == [1.0, 1.0]
