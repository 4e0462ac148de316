"""Facts of a model: special tokens by both of their names, the first position, and what rounding explains."""

from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch")

from brimful.doctor.probing.model_facts import (  # noqa: E402
    media_tokens,
    parity_limit_of,
    position_start_of,
    tokens_of_config,
)


def test_what_rounding_explains_depends_on_the_bits():
    limits = [parity_limit_of(dtype) for dtype in (torch.float64, torch.float32, torch.float16, torch.bfloat16)]
    assert limits == [1e-9, 1e-5, 1e-2, 6e-2]
    assert parity_limit_of(torch.float8_e4m3fn) == 6e-2


def test_tokens_of_a_configuration_are_found_by_both_names():
    config = SimpleNamespace(image_token_id=7, video_token_index=8, audio_token_id=None, pad_token_id=3)
    assert media_tokens(config) == [7, 8]
    assert tokens_of_config(config, "pad", "eos") == [3]
    assert media_tokens(None) == []


@pytest.mark.parametrize(
    ("config", "start"),
    [
        ({"model_type": "roberta", "pad_token_id": 1}, 2),
        ({"model_type": "roberta", "pad_token_id": None}, 1),
        ({"model_type": "llama", "pad_token_id": 1}, 0),
    ],
)
def test_positions_begin_after_the_padding_in_some_types(config, start):
    assert position_start_of(SimpleNamespace(**config)) == start
