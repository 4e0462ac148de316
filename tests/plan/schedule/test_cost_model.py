"""The coefficients of a model: formulae, impossible ones, and fits."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import SettingsError
from brimful.plan.schedule import CostModel
from tests.plan.schedule.instances import LLAMA2_7B, LLAMA3_8B, LLAMA3_70B, QWEN3_06B, QWEN3_8B

PLAIN = CostModel(linear=2, quadratic=1, tile=1)


@pytest.mark.parametrize(
    ("config", "layer", "full_square", "whole"),
    [
        (QWEN3_06B, 7680, 3840, 10393.14),
        (LLAMA2_7B, 49408, 24704, 50408),
        (LLAMA3_8B, 53248, 26624, 57256),
        (QWEN3_8B, 47104, 23552, 51324.44),
        (LLAMA3_70B, 104448, 52224, 106051.2),
    ],
    ids=["Qwen3-0.6B", "Llama-2-7B", "Llama-3-8B", "Qwen3-8B", "Llama-3-70B"],
)
def test_crossover_lengths_of_known_models(config, layer, full_square, whole):
    """Where attention costs as much as the rest: 7.7K, 49K, 53K, 47K, 104K of one layer, and later with the head.

    A widely copied estimate, three times the hidden size, would put them at 3K to 25K and balance what needs none.
    """
    headless = config | {"vocab_size": 0}
    assert CostModel.of_model(headless).crossover_length == layer
    assert CostModel.of_model(headless, causal=False).crossover_length == full_square
    assert CostModel.of_model(config).crossover_length == pytest.approx(whole, abs=0.01)


def test_the_formula_by_hand():
    """h 4, two layers, 2 heads of 3, 1 key head, MLP of 5 with 2 experts, 7 words."""
    model = CostModel.from_config(
        hidden_size=4,
        num_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=3,
        intermediate_size=5,
        vocab_size=7,
        experts_per_token=2,
    )
    # q 4·6, k and v 2·4·3, o 6·4, MLP 3·4·5·2: 192 multiplications, as many additions; two layers; the head 2·4·7.
    assert model.linear == 2 * 2 * (24 + 24 + 24 + 120) + 56
    assert model.quadratic == 2 * (2 * 2 * 3)


def test_the_head_counts():
    """311 of 1,192 MFLOPs a token in a 0.6B model: leaving it out moves the crossover by a third."""
    with_head, without = CostModel.of_model(QWEN3_06B), CostModel.of_model(QWEN3_06B | {"vocab_size": 0})
    assert with_head.linear - without.linear == 2 * 1024 * 151936


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"linear": -1, "quadratic": 1}, "linear must be a finite number of at least 0 and is -1"),
        ({"linear": 1, "quadratic": float("nan")}, "quadratic must be a finite number"),
        ({"linear": 0, "quadratic": 0}, "both 0"),
        ({"linear": 1, "quadratic": 1, "tile": 0}, "tile must be a whole number of at least 1 and is 0"),
        ({"linear": 1, "quadratic": 1, "window": 1.5}, "window must be a whole number"),
        ({"linear": 1, "quadratic": 1, "windowed_share": 2}, "windowed_share must be from 0 to 1 and is 2"),
    ],
)
def test_impossible_models(settings, message):
    with pytest.raises(SettingsError, match=message):
        CostModel(**settings)


def test_a_fit_finds_the_coefficients_that_made_the_timings():
    """Three timings by hand: 1e-6 s a token², 2e-3 s a token."""
    model = CostModel.fit(np.array([1000, 1000, 2000]), np.array([1e6, 4e6, 4e6]), np.array([3.0, 6.0, 8.0]))
    assert model.linear == pytest.approx(2e-3)
    assert model.quadratic == pytest.approx(1e-6)
    assert model.crossover_length == pytest.approx(2000)
    assert (model.r_squared, model.unit, model.tile) == (1.0, "seconds", 1)


@given(
    linear=st.floats(1e-6, 1e-2),
    quadratic=st.floats(1e-11, 1e-6),
    seed=st.integers(0, 100),
)
def test_a_fit_recovers_any_model_in_spite_of_noise(linear, quadratic, seed):
    """Full packs of one capacity, one per cent of noise: predictions stay within a few per cent of the mean."""
    random = np.random.default_rng(seed)
    tokens = np.full(200, 32768.0)
    squares = 32768.0 ** random.uniform(1.5, 2.0, 200)
    exact = linear * tokens + quadratic * squares
    model = CostModel.fit(tokens, squares, exact * random.normal(1.0, 0.01, 200), tile=128)
    assert np.abs(model.linear * tokens + model.quadratic * squares - exact).max() < 0.03 * exact.mean()
    assert model.tile == 128


def test_no_coefficient_is_negative():
    """Timings that fall with squares: attention too cheap to see. A negative cost per token² would prefer long segments."""
    tokens, squares = np.array([1000.0, 2000.0, 3000.0]), np.array([9e6, 4e6, 1e6])
    model = CostModel.fit(tokens, squares, np.array([0.9, 2.0, 3.2]))
    assert model.quadratic == 0
    assert model.linear == pytest.approx((0.9 + 4 + 9.6) / 14e3)
    model = CostModel.fit(tokens, squares, np.array([9.1, 4.0, 0.8]))
    assert model.linear == 0
    assert model.quadratic == pytest.approx((9.1 * 9 + 16 + 0.8) / 98e6)
    assert 0.99 < model.r_squared < 1


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        (([1, 2], [1, 4], [1, 2]), "2 timings are too few to fit two coefficients: give at least 3"),
        (([1, 2, 3], [1, 4, 9], [1, 2]), "seconds must be flat with 3 entries"),
        (([1, 2, 3], [2, 4, 6], [1, 2, 3]), "cannot tell tokens from squares"),
        (([5, 5, 5], [7, 7, 7], [1, 2, 3]), "cannot tell tokens from squares"),
        (([1, 2, 3], [1, 4, 9], [1, float("nan"), 3]), r"seconds\[1\] is nan"),
        (([1, 2, 3], [1, 4, 9], [1, -2, 3]), r"seconds\[1\] is -2.0"),
        (([1, 2, 3], [0, 0, 0], [1, 2, 3]), "squares are all 0"),
        (([1, 2, 3], [1, 4, 9], [0, 0, 0]), "seconds are all 0"),
    ],
)
def test_timings_from_which_nothing_follows(columns, message):
    """Numbers that look like a model and are noise would be worse than none."""
    with pytest.raises(SettingsError, match=message):
        CostModel.fit(*(np.array(column, dtype=np.float64) for column in columns))
