"""Sizes of models, as their configurations name them."""

import pytest

from brimful.errors import SettingsError
from brimful.plan.schedule import CostModel
from tests.plan.frozen import digest_of
from tests.plan.schedule.instances import LLAMA3_8B, QWEN3_06B, QWEN3_8B


def test_experts_of_one_token_count():
    """Qwen3-30B-A3B: 8 experts of 768 a token, not 128, and not the dense width that the file also names."""
    config = QWEN3_06B | {
        "hidden_size": 2048, "num_hidden_layers": 48, "num_attention_heads": 32, "num_key_value_heads": 4,
        "intermediate_size": 6144, "moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8,
        "decoder_sparse_step": 1, "mlp_only_layers": [], "vocab_size": 0,
    }  # fmt: skip
    model = CostModel.of_model(config)
    assert model.linear == 48 * 2 * (2048 * 4096 * 2 + 2048 * 512 * 2 + 3 * 2048 * 768 * 8)
    # Mixtral names no other width for its experts.
    mixtral = LLAMA3_8B | {"num_local_experts": 8, "num_experts_per_tok": 2, "model_type": "mixtral"}
    dense = CostModel.of_model(LLAMA3_8B)
    assert CostModel.of_model(mixtral).linear == dense.linear + 32 * 2 * 3 * 4096 * 14336


def test_dense_layers_and_shared_experts_count():
    """Four layers: the first dense, one more by name; in the others two experts of 10 and one shared."""
    config = {
        "hidden_size": 1, "num_hidden_layers": 4, "num_attention_heads": 1, "head_dim": 1, "vocab_size": 0,
        "intermediate_size": 100, "moe_intermediate_size": 10, "num_experts_per_tok": 2, "n_shared_experts": 1,
        "first_k_dense_replace": 1, "mlp_only_layers": [2],
    }  # fmt: skip
    assert CostModel.of_model(config).linear == 4 * 2 * 4 + 2 * 3 * (100 + 30 + 100 + 30)
    # Every third of eight layers has experts, but not the one that is named: one is left.
    config |= {"num_hidden_layers": 8, "first_k_dense_replace": 0, "decoder_sparse_step": 3, "mlp_only_layers": [5]}
    assert CostModel.of_model(config).linear == 8 * 2 * 4 + 2 * 3 * (7 * 100 + 30)


@pytest.mark.parametrize(
    ("more", "window", "share"),
    [
        ({"model_type": "mistral", "sliding_window": 4096}, 4096, 1.0),
        ({"model_type": "mistral", "sliding_window": None}, None, 1.0),
        ({"model_type": "qwen2", "sliding_window": 4096}, None, 1.0),
        ({"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": False}, None, 1.0),
        (
            {"model_type": "qwen2", "sliding_window": 4096, "use_sliding_window": True, "max_window_layers": 21},
            4096,
            0.25,
        ),
        ({"sliding_window": 128, "layer_types": ["sliding_attention", "full_attention"] * 14}, 128, 0.5),
        ({"sliding_window": 128, "layer_types": ["full_attention"] * 28}, None, 1.0),
        ({"model_type": "gemma3_text", "sliding_window": 512, "sliding_window_pattern": 7}, 512, 24 / 28),
    ],
)
def test_windows_are_used_only_where_the_config_says(more, window, share):
    """Qwen's files name a window they do not use; counting it would hide all of the imbalance."""
    model = CostModel.of_model(QWEN3_06B | more)
    assert (model.window, model.windowed_share) == (window, share)


def test_text_config_is_read_where_there_are_several():
    """A model with images keeps the decoder's numbers one level down."""
    assert CostModel.of_model({"text_config": QWEN3_8B, "hidden_size": 5}) == CostModel.of_model(QWEN3_8B)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "the config has no num_hidden_layers or num_layers; it has nothing"),
        ({"n_layer": 12, "num_hidden_layers": 2}, "no hidden_size; it has n_layer, num_hidden_layers"),
        (QWEN3_06B | {"hidden_size": "1024"}, "hidden_size must be a whole number of at least 1 and is '1024'"),
        (QWEN3_06B | {"kv_lora_rank": 512}, "kv_lora_rank.*CostModel.fit"),
        (QWEN3_06B | {"layer_types": ["linear_attention", "full_attention"]}, "layers of type linear_attention"),
    ],
)
def test_a_config_that_says_too_little_or_too_much(config, message):
    """Guessing would balance by wrong costs and say nothing."""
    with pytest.raises(SettingsError, match=message):
        CostModel.of_model(config)


def _random_config(chance):
    config = dict(QWEN3_06B | chance.of({}, {"head_dim": None}, {"num_key_value_heads": None}))
    names = {
        "moe_intermediate_size": 7, "num_experts_per_tok": 2, "n_shared_experts": 2, "decoder_sparse_step": 3,
        "shared_expert_intermediate_size": 5, "first_k_dense_replace": 4, "mlp_only_layers": [0, 5, 27],
        "use_sliding_window": True, "max_window_layers": 3, "sliding_window": 8, "sliding_window_pattern": 6,
        "layer_types": ["sliding_attention"] * 20 + ["full_attention"] * 8, "num_experts_per_token": 3, "vocab_size": 9,
    }  # fmt: skip
    for name, value in names.items():
        if chance.of(True, False):
            config[name] = chance.of(*[value] * 12, 0, None, *([1, -1] if isinstance(value, int) else []))
    model = CostModel.of_model(config, causal=chance.of(True, False))
    return [round(model.linear), model.quadratic, model.window, round(model.windowed_share, 9)]


def test_random_configs_cost_what_they_did():
    """Every name of a size there or not, at its default and below its least: half of them decide what another one means."""
    assert digest_of(_random_config, 2000) == "596f35d6323564b8"
