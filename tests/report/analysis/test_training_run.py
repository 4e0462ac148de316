"""Costs of named models, and of the model that a file describes."""

import pytest

from brimful.errors import SettingsError
from brimful.plan.schedule import CostModel
from brimful.report.analysis.training_run import MODELS, cost_model_from_config, cost_model_named


def test_named_models_have_the_crossover_lengths_of_their_papers():
    """Per layer and without the head: 7.7K for 0.6B, 53K for Llama-3-8B, 104K for 70B."""
    layer = {name: CostModel.of_model({**config, "vocab_size": 0}).crossover_length for name, config in MODELS.items()}
    assert layer["qwen3-0.6b"] == 7680
    assert layer["llama-3-8b"] == 53248
    assert layer["llama-3-70b"] == 104448
    assert layer["qwen3-8b"] == 47104
    with pytest.raises(SettingsError, match="unknown: use one of qwen3"):
        cost_model_named("gpt-9")


def test_a_model_may_be_a_config_file_or_its_directory(tmp_path):
    path = tmp_path / "config.json"
    path.write_text(
        '{"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128, "vocab_size": 0}'
    )
    assert cost_model_from_config(path).crossover_length == cost_model_from_config(tmp_path).crossover_length == 640
    for text, named in (("[1]", "no JSON object"), ("{", "is not the config.json"), ("{}", "num_hidden_layers")):
        path.write_text(text)
        with pytest.raises(SettingsError, match=named):
            cost_model_from_config(path)
