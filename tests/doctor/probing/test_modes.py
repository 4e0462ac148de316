"""Settings of a model for a while: each is its own again afterwards."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from brimful.doctor.probing import modes  # noqa: E402


def test_rates_are_zero_in_training_mode_and_come_back():
    """Dropout and jitter of modules, configurations and their parts; numbers that are no rates stay."""
    layer = torch.nn.Sequential(torch.nn.Dropout(0.5), torch.nn.Linear(2, 2))
    layer.config = SimpleNamespace(
        attention_dropout=0.1, p=0.3, text_config=SimpleNamespace(layerdrop=0.2, hidden_drop=1)
    )
    layer[1].router_jitter_noise = 0.4
    layer.eval()
    with modes.training(layer):
        assert layer.training
        assert (layer[0].p, layer[1].router_jitter_noise) == (0.0, 0.0)
        assert vars(layer.config)["attention_dropout"] == 0.0
        assert layer.config.p == 0.3
        assert vars(layer.config.text_config) == {"layerdrop": 0.0, "hidden_drop": 1}
    assert not layer.training
    assert (layer[0].p, layer[1].router_jitter_noise, layer.config.attention_dropout) == (0.5, 0.4, 0.1)
    assert layer.config.text_config.layerdrop == 0.2
    layer.train()
    layer[1].eval()
    with modes.training(layer):
        assert (layer.training, layer[1].training) == (True, False)
    with modes.evaluating(layer):
        assert not layer.training
    assert (layer.training, layer[1].training) == (True, False)


def test_low_precision_is_float32_for_a_while():
    """Weights and buffers, to the bit the same afterwards; double precision stays."""
    layer = torch.nn.Linear(2, 2).to(torch.bfloat16)
    layer.register_buffer("wide", torch.ones(1, dtype=torch.float64))
    before = layer.weight.data
    with modes.in_float32(layer):
        assert (layer.weight.dtype, layer.bias.dtype, layer.wide.dtype) == (torch.float32, torch.float32, torch.float64)
        layer(torch.ones(1, 2)).sum().backward()
    assert layer.weight.data is before or torch.equal(layer.weight.data, before)
    assert (layer.weight.dtype, layer.weight.grad) == (torch.bfloat16, None)


def test_random_numbers_are_the_same_each_time_and_the_callers_go_on():
    torch.manual_seed(3)
    expected = torch.rand(2).tolist()
    torch.manual_seed(3)
    drawn = []
    for seed in (0, 0, 1):
        with modes.seeded("cpu", seed):
            drawn.append(torch.rand(2).tolist())
    assert (drawn[0] == drawn[1], drawn[0] == drawn[2]) == (True, False)
    assert torch.rand(2).tolist() == expected


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ("no. Try this", "no"),
        ("no Please try", "no"),
        ("a\n  b", "a b"),
        ("v1.2 is old", "v1.2 is old"),
        ("x" * 300, "x" * 200),
        ("", "ValueError"),
    ],
)
def test_an_error_is_quoted_without_its_advice(message, text):
    assert modes.first_sentence(ValueError(message)) == text


def test_an_experiment_that_fails_is_none():
    from brimful.errors import SettingsError

    assert modes.experiment(lambda: 3) == 3
    assert modes.experiment(lambda: 1 / 0) is None
    with pytest.raises(SettingsError):
        modes.experiment(lambda: (_ for _ in ()).throw(SettingsError("yours")))
