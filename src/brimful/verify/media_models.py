"""Tiny random models of the families with media, for the packs of a processor's settings."""

import math
from collections.abc import Mapping
from typing import Any

import torch

from brimful.errors import SettingsError
from brimful.media import MediaKind
from brimful.messages import setting
from brimful.optional import optional
from brimful.verify.models import device_named, dtype_named

_TEXT: dict[str, Any] = {
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 24,
    "max_position_embeddings": 32_768,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10_000.0, "mrope_section": [4, 4, 4]}}
_STANDARD_DEVIATION = 0.1
"""Spread of the weights: wider than for training, so that the effect of one token on another shows."""


def tiny_media_model(
    settings: Mapping[str, Any],
    token_ids: Mapping[MediaKind, int],
    vocab: int,
    *,
    tokens_per_second: float = 2,
    dtype: str = "float32",
    device: str = "cpu",
    seed: int = 0,
) -> Any:
    """Build a random model of a family, tower and language model of two layers each.

    Args:
        settings: of the family, as ``Family.settings``: patches must have the sizes of the packs'.
        token_ids: token that stands for each kind of media.
        vocab: tokens of the vocabulary.
        tokens_per_second: positions in one second of a video (Qwen2.5-VL).
        dtype, device, seed: see ``models.tiny_model``.

    Raises:
        SettingsError: a family without a small model.
        MissingExtraError: Transformers is not installed.
    """
    with optional("transformers", "text", "verify"):
        import transformers
    family = str(settings["family"])
    place, kind = device_named(device), dtype_named(dtype)
    tokens = {f"{medium.value}_token_id": token_ids.get(medium, vocab - 1 - number) for number, medium in _NUMBERED}
    text = {**_TEXT, "vocab_size": vocab}
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        if family in ("qwen2-vl", "qwen2.5-vl", "qwen3-vl"):
            model = _qwen_vl(transformers, family, settings["image"], text, tokens, tokens_per_second)
        elif family == "qwen2-audio":
            model = _qwen_audio(transformers, settings["audio"], text, tokens["audio_token_id"])
        elif family == "qwen2.5-omni":
            model = _qwen_omni(transformers, settings, text, tokens)
        elif family == "llava":
            model = _llava(transformers, settings["image"], text, tokens["image_token_id"])
        elif family == "internvl":
            model = _internvl(transformers, settings["image"], text, tokens["image_token_id"])
        else:
            raise SettingsError(
                f"no small model of {family} is built in: name a model of your own by {setting('model', 'DIR')}"
            )
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, 0.0, _STANDARD_DEVIATION)
    return model.to(kind).to(place).eval()


_NUMBERED = tuple(enumerate(MediaKind))


def _qwen_vl(
    transformers: Any,
    family: str,
    image: Mapping[str, Any],
    text: dict[str, Any],
    tokens: dict[str, int],
    tokens_per_second: float,
) -> Any:
    vision: dict[str, Any] = {
        "depth": 2,
        "num_heads": 2,
        "patch_size": image["patch_size"],
        "spatial_merge_size": image["merge_size"],
        "temporal_patch_size": image["temporal_patch_size"],
    }
    towers: dict[str, dict[str, Any]] = {
        "qwen2-vl": {"embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2},
        "qwen2.5-vl": {
            "hidden_size": 32,
            "out_hidden_size": 48,
            "intermediate_size": 64,
            "fullatt_block_indexes": [1],
            "tokens_per_second": tokens_per_second,
        },
        "qwen3-vl": {
            "hidden_size": 32,
            "out_hidden_size": 48,
            "intermediate_size": 64,
            "deepstack_visual_indexes": [0],
        },
    }
    tower = towers[family]
    name = {"qwen2-vl": "Qwen2VL", "qwen2.5-vl": "Qwen2_5_VL", "qwen3-vl": "Qwen3VL"}[family]
    placeholder_ids = {key: tokens[key] for key in ("image_token_id", "video_token_id")}
    config = getattr(transformers, f"{name}Config")(
        text_config={**text, **_MROPE}, vision_config=vision | tower, **placeholder_ids
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


def _qwen_audio(transformers: Any, audio: Mapping[str, Any], text: dict[str, Any], token: int) -> Any:
    columns = audio["chunk_length"] * audio["sampling_rate"] // audio["hop_length"]
    tower = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
    config = transformers.Qwen2AudioConfig(
        audio_config={**tower, "num_mel_bins": 128, "max_source_positions": columns // 2},
        text_config={**text, "model_type": "qwen2"},
        audio_token_index=token,
    )
    return transformers.Qwen2AudioForConditionalGeneration(config)


def _qwen_omni(transformers: Any, settings: Mapping[str, Any], text: dict[str, Any], tokens: dict[str, int]) -> Any:
    """Return the part of Qwen2.5-Omni that reads: both towers and the language model, without the part that speaks."""
    image = settings["image"]
    tower = {"d_model": 32, "encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 32}
    vision: dict[str, Any] = {
        "depth": 2,
        "num_heads": 2,
        "hidden_size": 32,
        "out_hidden_size": 48,
        "intermediate_size": 64,
    }
    vision |= {"patch_size": image["patch_size"], "spatial_merge_size": image["merge_size"]}
    vision |= {"temporal_patch_size": image["temporal_patch_size"], "fullatt_block_indexes": [1]}
    unused = int(
        text["vocab_size"]
    )  # ids that begin a medium, by which the model finds media if positions are not given
    config = transformers.Qwen2_5OmniThinkerConfig(
        audio_config={**tower, "num_mel_bins": 128, "output_dim": 48},
        vision_config=vision,
        text_config={**text, **_MROPE},
        **{f"{kind}_token_index": tokens[f"{kind}_token_id"] for kind in ("audio", "image", "video")},
        **{f"{kind}_start_token_id": unused + number for number, kind in enumerate(("audio", "vision"))},
    )
    return transformers.Qwen2_5OmniThinkerForConditionalGeneration(config)


def _internvl(transformers: Any, image: Mapping[str, Any], text: dict[str, Any], token: int) -> Any:
    # Four patches are one token. The processor's files do not give the patch size; tiles and tokens leave one choice.
    width, height = int(image["width"]), int(image["height"])
    patch = math.isqrt(width * height // (4 * int(image["image_seq_length"])))
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.InternVLConfig(
        vision_config={**vision, "image_size": [height, width], "patch_size": [patch, patch]},
        text_config={**text, "model_type": "qwen2"},
        image_token_id=token,
        image_seq_length=image["image_seq_length"],
        tie_word_embeddings=False,
    )
    return transformers.InternVLForConditionalGeneration(config)


def _llava(transformers: Any, image: Mapping[str, Any], text: dict[str, Any], token: int) -> Any:
    vision = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    vision |= {"num_attention_heads": 2, "image_size": image["width"], "patch_size": image["patch_size"]}
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config={**text, "model_type": "llama"},
        image_token_index=token,
        vision_feature_select_strategy=image["vision_feature_select_strategy"],
    )
    return transformers.LlavaForConditionalGeneration(config)
