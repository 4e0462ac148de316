"""The loss of KTO by hand, and the parts of a pack: what tells every exchange of roles, classes and masks apart."""

import math
import re
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from brimful.collate.loss_torch import SegmentLosses  # noqa: E402
from brimful.errors import CollateError, SettingsError  # noqa: E402
from brimful.preferences.kto import split_kl_completions, with_mismatch_targets  # noqa: E402
from brimful.preferences.losses import kto_loss  # noqa: E402
from brimful.store.shards import assemble_pack  # noqa: E402
from brimful.testing.toys import ToyPacks  # noqa: E402


def sigmoid(x):
    return 1 / (1 + math.exp(-x))


def pack():
    """Row 2 is desirable, row 3 is not; both orders, and prompts and completions of different lengths::

    sample      4            5              7           6
    tokens      10 11 12     10 11 22 23    20 22 23    20 12
    targets           12                       22 23
    """
    ids = [[10, 11, 12], [10, 11, 22, 23], [20, 22, 23], [20, 12]]
    masks = [[0, 0, 1], [0, 0, 0, 0], [0, 1, 1], [0, 0]]
    return assemble_pack([np.array(i, np.int32) for i in ids], [np.array(m, bool) for m in masks], [4, 5, 7, 6])


def test_each_row_by_hand():
    """Weights, signs and the KL term differ for both classes: exchanging any two of them gives other numbers."""
    losses = SegmentLosses(torch.tensor([2.0, 9.0, 4.0]), torch.tensor([3, 3, 3]), torch.tensor([0, 0, 0]))
    options: dict[str, Any] = {"beta": 0.5, "desirable_weight": 1.5, "undesirable_weight": 0.25}
    result = kto_loss(losses, [0, 2], [True, False], [-3.5, -3.0], kl=0.75, **options)
    # log ratios: -2 + 3.5 = 1.5 and -4 + 3 = -1; segment 1 is of no row
    expected = [1.5 * sigmoid(-0.5 * (1.5 - 0.75)), 0.25 * sigmoid(0.5 * (-1 - 0.75))]
    assert result.losses.tolist() == pytest.approx(expected, abs=1e-6)
    assert result.rewards.tolist() == pytest.approx([0.75, -0.5])
    apo = kto_loss(losses, [0, 2], [True, False], [-3.5, -3.0], loss_type="apo_zero_unpaired", **options)
    assert apo.losses.tolist() == pytest.approx([1.5 * sigmoid(-0.75), 0.25 * sigmoid(-0.5)], abs=1e-6)


def test_a_kl_term_below_zero_counts_as_zero():
    losses = SegmentLosses(torch.tensor([2.0]), torch.tensor([3]), torch.tensor([0]))
    below, zero = (kto_loss(losses, [0], [True], [-3.0], kl=kl).losses.tolist() for kl in (-5.0, 0.0))
    assert below == zero


def test_a_pack_is_parted_token_by_token():
    """Whole output: each answer has its own mismatch, whose targets begin where the completion of the answer begins."""
    parted = split_kl_completions(pack())
    assert parted.answers.input_ids.tolist() == [10, 11, 12, 20, 22, 23]
    assert parted.answers.loss_mask.astype(int).tolist() == [0, 0, 1, 0, 1, 1]
    assert parted.answers.sample_ids.tolist() == [4, 7]
    assert parted.kl_completions.input_ids.tolist() == [10, 11, 22, 23, 20, 12]
    assert parted.kl_completions.loss_mask.astype(int).tolist() == [0, 0, 1, 1, 0, 1]
    assert parted.kl_completions.sample_ids.tolist() == [5, 6]
    assert parted.is_desirable.tolist() == [True, False]
    assert parted.is_row.tolist() == [True, True]
    both = with_mismatch_targets(ToyPacks([pack()]))[0]
    assert both.loss_mask.astype(int).tolist() == [0, 0, 1, 0, 0, 1, 1, 0, 1, 1, 0, 1]


def test_a_row_without_its_beginning_is_refused():
    cut = assemble_pack(
        [np.array([11, 12]), np.array([10, 22])], [np.array([False, True]), np.array([False, False])], [5, 4], [1, 2]
    )
    with pytest.raises(CollateError, match="sample 5 lost its beginning"):
        split_kl_completions(cut)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"loss_type": "dpo"}, SettingsError, '"dpo" is unknown: use one of kto, apo_zero_unpaired'),
        ({"beta": 0}, SettingsError, "beta must be above 0 and is 0"),
        ({"beta": "1"}, SettingsError, "beta must be above 0 and is '1'"),
        ({"desirable_weight": -1}, SettingsError, "desirable_weight must be 0 or more and is -1"),
        ({"undesirable_weight": None}, SettingsError, "undesirable_weight must be 0 or more and is None"),
        (
            {"kl": None},
            SettingsError,
            "needs kl, the KL term of the step, and other losses take none; kl is None for kto",
        ),
        ({"loss_type": "apo_zero_unpaired"}, SettingsError, "kl is 0.0 for apo_zero_unpaired"),
        ({"reference_logps": [0.0]}, CollateError, "one value for each of 2 rows; their shapes are (2,) and (1,)"),
        ({"is_desirable": [True]}, CollateError, "their shapes are (1,) and (2,)"),
    ],
)
def test_wrong_numbers_are_refused(options, error, message):
    losses = SegmentLosses(torch.tensor([2.0, 4.0]), torch.tensor([3, 3]), torch.tensor([0, 0]))
    right: dict[str, Any] = {
        "segments": [0, 1],
        "is_desirable": [True, False],
        "reference_logps": [-3.0, -3.0],
        "kl": 0.0,
    }
    kto_loss(losses, **right, desirable_weight=0)
    with pytest.raises(error, match=re.escape(message)):
        kto_loss(losses, **{**right, **options})


def test_targets_on_both_sides_are_refused():
    """Such a pair is one of preferences, and its worse side would be trained on as a mismatch."""
    ids, masks = [np.array([1, 2])] * 6, [np.array([False, True])] * 6
    masks[1] = np.zeros(2, bool)
    with pytest.raises(CollateError, match="sample 8 and its mate both have targets"):
        split_kl_completions(assemble_pack(ids, masks, [4, 5, 8, 9, 10, 11]))


def test_a_row_without_targets_fills_its_step():
    nothing = [np.zeros(2, bool)] * 2
    parted = split_kl_completions(assemble_pack([np.array([1, 2])] * 2, nothing, [4, 5]))
    assert (parted.is_row.tolist(), parted.kl_completions.loss_mask.tolist()) == ([False], [False, False])


def test_a_mismatch_that_ends_before_its_completion_has_no_target():
    """Cut, or of a shorter prompt: targets end with the mismatch, and never lie in the segment after it."""
    ids = [np.array([1, 2, 3]), np.array([1, 2]), np.array([4, 5]), np.array([4, 6])]
    masks = [np.array(mask, bool) for mask in ([0, 0, 1], [0, 0], [0, 1], [0, 0])]
    parted = split_kl_completions(assemble_pack(ids, masks, [4, 5, 6, 7]))
    assert parted.kl_completions.loss_mask.tolist() == [False, False, False, True]
