"""What packs and samples cost: sums by pack, tiles, windows, pictures."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import plan_packs
from brimful.errors import SettingsError
from brimful.plan.schedule import CostModel, pack_costs, pack_squares
from brimful.plan.schedule.pack_costs import sample_costs
from brimful.testing.strategies import capacities_and_lengths

PLAIN = CostModel(linear=2, quadratic=1, tile=1)


def test_a_pack_by_hand():
    """One segment of 8, or four of 2: the same tokens, 80 against 32."""
    offsets, lengths = np.array([0, 1, 5]), np.array([8, 2, 2, 2, 2], dtype=np.int32)
    assert pack_costs(offsets, lengths, PLAIN).tolist() == [2 * 8 + 64, 2 * 8 + 16]
    assert pack_costs(offsets, lengths, PLAIN).dtype == np.float64


def test_short_segments_cost_a_whole_tile():
    """A kernel that takes 128 queries at once spends as much on 5: 128 · 5, and 2 · 128 · 129."""
    offsets, lengths = np.array([0, 2, 3, 4]), np.array([5, 128, 129, 1])
    assert pack_squares(offsets, lengths, tile=128).tolist() == [128 * 5 + 128 * 128, 256 * 129, 128]
    assert pack_squares(offsets, lengths).tolist() == [25 + 128 * 128, 129 * 129, 1]


def test_a_window_counts_the_band_below_the_diagonal():
    """Length 6, window 2: twice the 11 pairs, less the diagonal's half that the square counts everywhere."""
    length, window = 6, 2
    pairs = sum(min(query + 1, window) for query in range(length))
    assert pairs == 11
    all_pairs = sum(query + 1 for query in range(length))
    squares = pack_squares(np.array([0, 1]), np.array([length]), window=window)[0]
    assert squares == 36 - 16 == 20
    # length² stands for length·(length + 1) ÷ 2 pairs, less than a token per query off; so does what is left of it.
    assert abs(squares / 2 - pairs) <= length / 2 >= abs(length**2 / 2 - all_pairs)
    assert pack_squares(np.array([0, 1]), np.array([2]), window=2).tolist() == [4]


def test_layers_with_and_without_a_window_are_averaged():
    """Half of the layers see 4 tokens back: 64 and 64 − 16, weighed alike."""
    model = replace(PLAIN, window=4, windowed_share=0.5)
    assert pack_costs(np.array([0, 1]), np.array([8]), model).tolist() == [16 + (64 + 48) / 2]


def test_images_are_squared_before_they_are_summed():
    """Two images of 3 and 4 patches: 25 patches², not 49; no image looks into another."""
    model = replace(PLAIN, encoder_linear=10.0, encoder_quadratic=100.0)
    offsets, lengths = np.array([0, 1, 2]), np.array([1, 1])
    patches, squares = np.array([7, 0]), np.array([9 + 16, 0])
    costs = pack_costs(offsets, lengths, model, patches=patches, patch_squares=squares)
    assert costs.tolist() == [3 + 70 + 2500, 3]
    assert pack_costs(offsets, lengths, model).tolist() == [3, 3]


def test_a_pack_without_segments_costs_nothing():
    """``reduceat`` alone would give it the segment that follows."""
    offsets = np.array([0, 0, 2, 2, 3, 3])
    assert pack_squares(offsets, np.array([1, 2, 3])).tolist() == [0, 5, 0, 9, 0]
    assert pack_squares(np.array([0]), np.array([], dtype=np.int32)).tolist() == []


def test_squares_of_the_longest_segments_do_not_overflow():
    """int32 lengths squared in int32 would be 0 for 65,536."""
    lengths = np.array([65_536, 2**31 - 1], dtype=np.int32)
    assert pack_squares(np.array([0, 1, 2]), lengths, tile=128).tolist() == [2**32, 2**31 * (2**31 - 1)]


@given(case=capacities_and_lengths(), tile=st.sampled_from([1, 3, 128]), window=st.sampled_from([None, 1, 5]))
def test_costs_of_a_plan_are_those_of_its_packs_one_by_one(case, tile, window):
    """The vectorised sums against a plain loop."""
    capacity, lengths = case
    plan = plan_packs(lengths, capacity=capacity)
    model = CostModel(linear=3, quadratic=0.25, tile=tile, window=window)
    expected = []
    for pack in plan:
        squares = 0
        for segment in pack:
            squares += -(-segment.length // tile) * tile * segment.length
            squares -= max(0, segment.length - window) ** 2 if window else 0
        expected.append(3 * sum(segment.length for segment in pack) + 0.25 * squares)
    assert pack_costs(plan.offsets, plan.lengths, model).tolist() == expected


@given(
    lengths=st.lists(st.integers(1, 2**31 - 1), min_size=1, max_size=20),
    linear=st.sampled_from([1, 24576, 0.1]),
    tile=st.sampled_from([1, 128]),
    window=st.sampled_from([None, 4096]),
)
def test_a_sample_costs_what_it_costs_in_a_pack_of_its_own(lengths, linear, tile, window):
    """To the last bit: steps are planned from the one, packs are balanced by the other; int32 must not overflow."""
    model = CostModel(linear=linear, quadratic=1, tile=tile, window=window, windowed_share=0.75 if window else 0.0)
    array = np.array(lengths, dtype=np.int32)
    alone = pack_costs(np.arange(len(array) + 1), array, model)
    assert sample_costs(array, model).tolist() == alone.tolist()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (([0, 1, 3], [1, 1]), "plan_offsets must rise from 0 to the number of plan_lengths"),
        (([0, 2, 1, 2], [1, 1]), "plan_offsets must rise"),
        (([], [1, 1]), "plan_offsets and plan_lengths must be flat"),
        (([1, 2], [1, 1]), "plan_offsets must rise from 0"),
        (([[0, 2]], [1, 1]), "plan_offsets and plan_lengths must be flat"),
        (([0, 1], [[1]]), "plan_offsets and plan_lengths must be flat"),
        (([0, 2], [1, -1]), "plan_lengths holds -1"),
    ],
)
def test_offsets_that_do_not_fit(arguments, message):
    """Numbers of another plan would give costs of no pack at all."""
    offsets, lengths = (np.array(values, dtype=np.int64) for values in arguments)
    with pytest.raises(SettingsError, match=message):
        pack_costs(offsets, lengths, PLAIN)


@pytest.mark.parametrize(
    ("media", "message"),
    [
        ({"patches": np.array([1, 2])}, "patches must be flat with 1 entries and has shape"),
        ({"patches": np.array([-1])}, r"patches\[0\] is -1.0"),
        ({"patch_squares": np.array([4])}, "encoder_quadratic = 0: set it, or leave patch_squares out"),
    ],
)
def test_patches_that_do_not_fit(media, message):
    model = replace(PLAIN, encoder_linear=1.0)
    with pytest.raises(SettingsError, match=message):
        pack_costs(np.array([0, 1]), np.array([3]), model, **media)
