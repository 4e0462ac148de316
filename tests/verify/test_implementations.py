"""Attention implementations for a while: the model's own is back afterwards, and a refusal says what works instead."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from brimful.doctor.probing.modes import current_implementation  # noqa: E402
from brimful.verify.implementations import NotSupported, using  # noqa: E402


class Switching(torch.nn.Module):  # type: ignore[name-defined]
    """A model that switches its attention, but for some names."""

    def __init__(self, own="sdpa", ignored=(), refused=()):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(2))
        self.config = SimpleNamespace(_attn_implementation=own)
        self.ignored, self.refused, self.calls = ignored, refused, []

    def set_attn_implementation(self, name):
        self.calls.append(name)
        if name in self.refused:
            self.config._attn_implementation = name
            raise ValueError("not here. Please ask elsewhere")
        if name not in self.ignored:
            self.config._attn_implementation = name


def test_an_implementation_is_switched_for_a_while():
    model = Switching()
    with using(model, "eager"):
        assert current_implementation(model) == "eager"
    assert (current_implementation(model), model.calls) == ("sdpa", ["eager", "sdpa"])
    with using(model, "sdpa"):
        pass
    assert model.calls == ["eager", "sdpa"]


@pytest.mark.parametrize("name", ["aaa", "zzz"])
def test_a_model_that_keeps_its_attention_is_told(name):
    """Some classes only warn; with the old kernel every check would pass for the new one."""
    model = Switching("own", ignored=[name])
    with pytest.raises(NotSupported, match="Switching cannot switch its attention"), using(model, name):
        raise AssertionError
    assert current_implementation(model) == "own"


def test_a_refusal_is_quoted_and_the_old_attention_is_back():
    model = Switching(refused=["eager"])
    with pytest.raises(NotSupported, match=r"^not here$"), using(model, "eager"):
        raise AssertionError
    assert current_implementation(model) == "sdpa"
    with pytest.raises(NotSupported, match="needs a GPU"), using(model, "flash_attention_2"):
        raise AssertionError
    with (
        pytest.raises(NotSupported, match="no set_attn_implementation"),
        using(torch.nn.Linear(1, 1), "sdpa"),
    ):
        raise AssertionError
    assert current_implementation(torch.nn.Linear(1, 1)) == "as it is"
