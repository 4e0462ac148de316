"""Small models of an architecture: what they keep, what they are asked, and that the caller does not notice."""

import logging

import pytest

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

from brimful.errors import SettingsError  # noqa: E402
from brimful.trees import small_models  # noqa: E402
from brimful.trees.small_models import measured, small_config, small_model  # noqa: E402


class WithScale(torch.nn.Module):  # type: ignore[name-defined]
    """A matrix, a vector and a number, in the shape of a model."""

    def __init__(self, config):
        super().__init__()
        self.matrix = torch.nn.Parameter(torch.zeros(50, 50))
        self.vector, self.scale = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.tensor(2.0))


def test_only_matrices_are_drawn_wider_than_for_training():
    """A scale or a norm of noise would hide what tokens do to each other."""
    model = small_model(WithScale, None)
    assert 0.09 < float(model.matrix.detach().std()) < 0.11
    assert (model.scale.item(), model.vector.tolist()) == (2, [1, 1, 1])


def test_a_model_that_does_not_shrink_is_refused_before_it_takes_memory(monkeypatch):
    config = transformers.LlamaConfig()
    monkeypatch.setattr(small_models, "_MAX_PARAMETERS", 2_504)
    assert small_model(WithScale, config)
    monkeypatch.setattr(small_models, "_MAX_PARAMETERS", 2_503)
    with pytest.raises(SettingsError, match=r"llama.*does not shrink \(2,504 parameters\)"):
        small_model(WithScale, config)


def test_every_kind_of_layer_occurs_once_and_other_models_have_two_layers():
    """A kind that is missing could leak; a second of each only costs time."""
    gemma = small_config(transformers.Gemma3TextConfig)
    assert gemma.layer_types == ["sliding_attention", "full_attention"]
    assert gemma.num_hidden_layers == small_config(transformers.LlamaConfig).num_hidden_layers == 2
    qwen = small_config(transformers.Qwen3Config)
    assert qwen.layer_types == ["full_attention"] * qwen.num_hidden_layers == ["full_attention"] * 2


def test_switches_of_the_given_configuration_are_kept():
    """They may change who sees whom; sizes do not."""
    given = transformers.Qwen2Config(use_sliding_window=True, tie_word_embeddings=True, hidden_size=4096)
    small = small_config(transformers.Qwen2Config, given)
    assert (small.use_sliding_window, small.tie_word_embeddings, small.hidden_size) == (True, True, 64)


def test_a_question_is_asked_once_and_changes_nothing_of_the_caller():
    """The same seed for every model; random numbers, gradients and the log of Transformers stay as they were."""
    asked = []

    @measured
    def question(model):
        asked.append(model)
        assert not torch.is_grad_enabled()
        assert not model.training
        assert logging.getLogger("transformers").level == logging.ERROR
        return float(next(model.parameters()).sum())

    before, level = torch.random.get_rng_state(), logging.getLogger("transformers").level
    answers = [question(transformers.LlamaForCausalLM, transformers.LlamaConfig(num_hidden_layers=n)) for n in (3, 9)]
    assert answers[0] == answers[1] is not None
    assert len(asked) == 1
    assert torch.equal(torch.random.get_rng_state(), before)
    assert logging.getLogger("transformers").level == level


def test_a_question_that_fails_has_no_answer_and_is_not_asked_again():
    asked = []

    @measured
    def question(model):
        asked.append(model)
        raise RuntimeError("custom code")

    config = transformers.LlamaConfig()
    assert [question(transformers.LlamaForCausalLM, config) for _ in range(2)] == [None, None]
    assert len(asked) == 1
