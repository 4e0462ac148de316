"""Terms of towers equal the arithmetic that PyTorch counts while the towers of Transformers compute."""

import json

import pytest

from brimful.errors import SettingsError
from brimful.media.towers import tower_terms
from brimful.plan.schedule import Component, CostModel

TEXT = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 64}
TEXT |= {"intermediate_size": 48, "max_position_embeddings": 64}
CLIP = {"hidden_size": 16, "intermediate_size": 40, "num_hidden_layers": 2, "num_attention_heads": 2, "patch_size": 2}
VISION = {
    "qwen2_vl": {"embed_dim": 16, "hidden_size": 32, "depth": 2, "num_heads": 2, "patch_size": 4},
    "qwen2_5_vl": {
        "hidden_size": 16, "out_hidden_size": 32, "depth": 3, "num_heads": 2, "patch_size": 4, "intermediate_size": 40,
        "window_size": 16, "fullatt_block_indexes": [1],
    },
    "qwen3_vl": {
        "hidden_size": 16, "out_hidden_size": 32, "depth": 2, "num_heads": 2, "patch_size": 4, "intermediate_size": 40,
        "deepstack_visual_indexes": [0], "num_position_embeddings": 64,
    },
    "llava": {**CLIP, "model_type": "clip_vision_model", "image_size": 32},
    "internvl": {**CLIP, "image_size": [32, 32], "patch_size": [2, 2]},
}  # fmt: skip


def flops(function):
    """Additions and multiplications of matrix products and convolutions."""
    torch = pytest.importorskip("torch", reason="arithmetic is counted by PyTorch")
    from torch.utils.flop_counter import FlopCounterMode

    counter = FlopCounterMode(display=False)
    with torch.no_grad(), counter:
        function()
    return counter.get_total_flops()


def config_of(kind, width=32, **facts):
    """The configuration of Transformers, and what it writes to ``config.json``."""
    transformers = pytest.importorskip("transformers", reason="towers are those of Transformers")
    names = {
        "qwen2_vl": "Qwen2VLConfig",
        "qwen2_5_vl": "Qwen2_5_VLConfig",
        "qwen3_vl": "Qwen3VLConfig",
        "llava": "LlavaConfig",
        "internvl": "InternVLConfig",
    }
    text = {**TEXT, "hidden_size": width}
    if kind in ("llava", "internvl"):
        text["model_type"] = {"llava": "llama", "internvl": "qwen2"}[kind]
    facts["_attn_implementation"] = "eager"
    config = getattr(transformers, names[kind])(text_config=text, vision_config=VISION[kind], **facts)
    return config, json.loads(config.to_json_string())


@pytest.mark.parametrize("side", [8, 16])
@pytest.mark.parametrize("kind", ["qwen2_vl", "qwen2_5_vl", "qwen3_vl"])
def test_qwen_towers(kind, side):
    """One picture of side² patches; windows of 4 x 4 patches divide it."""
    config, parsed = config_of(kind)
    torch = pytest.importorskip("torch")
    import transformers

    names = {
        "qwen2_vl": "Qwen2VLForConditionalGeneration",
        "qwen2_5_vl": "Qwen2_5_VLForConditionalGeneration",
        "qwen3_vl": "Qwen3VLForConditionalGeneration",
    }
    tower = getattr(transformers, names[kind])(config).model.visual
    pixels = torch.zeros(side**2, 3 * 2 * 4 * 4)
    grid = torch.tensor([[1, side, side]])
    terms = tower_terms(parsed, width=32)
    expected = terms["encoder_linear"] * side**2 + terms["encoder_quadratic"] * side**4
    assert flops(lambda: tower(pixels, grid_thw=grid)) == expected


@pytest.mark.parametrize(
    ("kind", "width", "facts"),
    [("llava", 32, {}), ("llava", 256, {}), ("internvl", 32, {}), ("internvl", 256, {"downsample_ratio": 0.25})],
)
def test_towers_of_one_size(kind, width, facts):
    """16 x 16 patches and the class token, which is not counted: a hundredth here, less than a thousandth of real towers.

    With a wide language model, nearly all is the projector to it.
    """
    config, parsed = config_of(kind, width, **facts)
    torch = pytest.importorskip("torch")
    import transformers

    name = {"llava": "LlavaForConditionalGeneration", "internvl": "InternVLForConditionalGeneration"}[kind]
    model = getattr(transformers, name)(config).model
    terms = tower_terms(parsed, width=width)
    expected = terms["encoder_linear"] * 256 + terms["encoder_quadratic"] * 256**2
    counted = flops(lambda: model.get_image_features(torch.zeros(1, 3, 32, 32)))
    assert counted == pytest.approx(expected, rel=0.01)


AUDIO = {"d_model": 16, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 40, "num_mel_bins": 8}


def test_qwen2_audio_pads_each_sound():
    """A short sound costs what the longest does: the tower computes the padding too."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    config = transformers.Qwen2AudioConfig(
        audio_config={**AUDIO, "max_source_positions": 50},
        text_config={**TEXT, "model_type": "qwen2"},
        _attn_implementation="eager",
    )
    model = transformers.Qwen2AudioForConditionalGeneration(config)
    parsed = json.loads(config.to_json_string())
    features = torch.zeros(1, 8, 100)

    def run():
        model.model.multi_modal_projector(model.model.audio_tower(features).last_hidden_state)

    assert tower_terms(parsed, width=32) == {"audio_constant": flops(run)}


@pytest.mark.parametrize("num_columns", [20, 60])
def test_qwen25_omni_is_read_from_its_thinker(num_columns):
    """Its sounds are cut into windows, here of 20 columns, so they cost by their columns."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    parsed = json.loads(transformers.Qwen2_5OmniConfig().to_json_string())
    assert CostModel.of_model(parsed).components == (
        Component.LANGUAGE_MODEL,
        Component.VISION_TOWER,
        Component.AUDIO_TOWER,
    )
    module = pytest.importorskip("transformers.models.qwen2_5_omni.modeling_qwen2_5_omni")
    config = module.Qwen2_5OmniAudioEncoderConfig(**AUDIO, n_window=10, output_dim=32, _attn_implementation="eager")
    tower = module.Qwen2_5OmniAudioEncoder(config)
    thinker = {"audio_config": json.loads(config.to_json_string())}
    lengths = {"feature_lens": torch.tensor([num_columns]), "aftercnn_lens": torch.tensor([num_columns // 2])}
    assert tower_terms({"thinker_config": thinker}, width=32) == {
        "audio_linear": flops(lambda: tower(torch.zeros(8, num_columns), **lengths)) / num_columns
    }


def test_a_model_of_texts_has_no_tower():
    assert tower_terms({"hidden_size": 4}, width=4) == {}
    config = {
        "hidden_size": 64,
        "num_hidden_layers": 1,
        "num_attention_heads": 4,
        "intermediate_size": 128,
        "vocab_size": 9,
    }
    assert CostModel.of_model(config).components == (Component.LANGUAGE_MODEL,)


def test_a_number_that_is_missing_is_named():
    """A tower that is left out in silence would make every picture free."""
    config = {**TEXT, "vision_config": {"depth": 2}}
    with pytest.raises(SettingsError, match="vision_config: the config has no embed_dim or hidden_size; it has depth"):
        CostModel.of_model(config)
