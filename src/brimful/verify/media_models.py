"""Tiny random models of the families with media, for the packs of a processor's settings."""

import math
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from brimful.errors import SettingsError
from brimful.media import MediaKind
from brimful.messages import setting
from brimful.optional import optional
from brimful.verify.models import device_named, with_random_weights

_Settings: TypeAlias = Mapping[str, Any]

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
_VISION = {"depth": 2, "num_heads": 2, "hidden_size": 32, "out_hidden_size": 48, "intermediate_size": 64}
_AUDIO = {
    "d_model": 32,
    "encoder_layers": 2,
    "encoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "num_mel_bins": 128,
}


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
    if family not in _BUILDERS:
        raise SettingsError(
            f"no small model of {family} is built in: name a model of your own by {setting('model', 'DIR')}"
        )
    torch_device = device_named(device)
    tokens = {kind.value: token_ids.get(kind, vocab - 1 - number) for number, kind in enumerate(MediaKind)}
    text = {**_TEXT, "vocab_size": vocab}
    settings = {"tokens_per_second": tokens_per_second, **settings}
    build = partial(_BUILDERS[family], transformers, settings, text, tokens)
    return with_random_weights(build, dtype, seed).to(torch_device).eval()


def _qwen_vl(transformers: Any, settings: _Settings, text: _Settings, tokens: Mapping[str, int]) -> Any:
    name, tower = {
        "qwen2-vl": ("Qwen2VL", {"depth": 2, "num_heads": 2, "embed_dim": 32, "hidden_size": 48, "mlp_ratio": 2}),
        "qwen2.5-vl": (
            "Qwen2_5_VL",
            {**_VISION, "fullatt_block_indexes": [1], "tokens_per_second": settings["tokens_per_second"]},
        ),
        "qwen3-vl": ("Qwen3VL", {**_VISION, "deepstack_visual_indexes": [0]}),
    }[settings["family"]]
    config = getattr(transformers, f"{name}Config")(
        text_config={**text, **_MROPE},
        vision_config={**tower, **_patches(settings)},
        image_token_id=tokens["image"],
        video_token_id=tokens["video"],
    )
    return getattr(transformers, f"{name}ForConditionalGeneration")(config)


def _qwen_audio(transformers: Any, settings: _Settings, text: _Settings, tokens: Mapping[str, int]) -> Any:
    audio = settings["audio"]
    columns = audio["chunk_length"] * audio["sampling_rate"] // audio["hop_length"]
    config = transformers.Qwen2AudioConfig(
        audio_config={**_AUDIO, "max_source_positions": columns // 2},
        text_config={**text, "model_type": "qwen2"},
        audio_token_index=tokens["audio"],
    )
    return transformers.Qwen2AudioForConditionalGeneration(config)


def _qwen_omni(transformers: Any, settings: _Settings, text: _Settings, tokens: Mapping[str, int]) -> Any:
    """Return the part of Qwen2.5-Omni that reads: both towers and the language model, without the part that speaks."""
    # Ids that begin a medium, by which the model finds media if positions are not given, are not in the vocabulary.
    vocab = int(text["vocab_size"])
    config = transformers.Qwen2_5OmniThinkerConfig(
        audio_config={**_AUDIO, "output_dim": 48},
        vision_config={**_VISION, **_patches(settings), "fullatt_block_indexes": [1]},
        text_config={**text, **_MROPE},
        **{f"{kind}_token_index": token for kind, token in tokens.items()},
        audio_start_token_id=vocab,
        vision_start_token_id=vocab + 1,
    )
    return transformers.Qwen2_5OmniThinkerForConditionalGeneration(config)


def _internvl(transformers: Any, settings: _Settings, text: _Settings, tokens: Mapping[str, int]) -> Any:
    # Four patches are one token. The processor's files do not give the patch size; tiles and tokens leave one choice.
    image = settings["image"]
    width, height = int(image["width"]), int(image["height"])
    patch = math.isqrt(width * height // (4 * int(image["image_seq_length"])))
    vision = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.InternVLConfig(
        vision_config={**vision, "image_size": [height, width], "patch_size": [patch, patch]},
        text_config={**text, "model_type": "qwen2"},
        image_token_id=tokens["image"],
        image_seq_length=image["image_seq_length"],
        tie_word_embeddings=False,
    )
    return transformers.InternVLForConditionalGeneration(config)


def _llava(transformers: Any, settings: _Settings, text: _Settings, tokens: Mapping[str, int]) -> Any:
    image = settings["image"]
    vision = {"model_type": "clip_vision_model", "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3}
    vision |= {"num_attention_heads": 2, "image_size": image["width"], "patch_size": image["patch_size"]}
    config = transformers.LlavaConfig(
        vision_config=vision,
        text_config={**text, "model_type": "llama"},
        image_token_index=tokens["image"],
        vision_feature_select_strategy=image["vision_feature_select_strategy"],
    )
    return transformers.LlavaForConditionalGeneration(config)


def _patches(settings: _Settings) -> dict[str, Any]:
    """Return the sizes of patches of a processor of the Qwen family."""
    image = settings["image"]
    return {
        "patch_size": image["patch_size"],
        "spatial_merge_size": image["merge_size"],
        "temporal_patch_size": image["temporal_patch_size"],
    }


_BUILDERS: dict[str, Callable[[Any, _Settings, _Settings, Mapping[str, int]], Any]] = {
    "qwen2-vl": _qwen_vl,
    "qwen2.5-vl": _qwen_vl,
    "qwen3-vl": _qwen_vl,
    "qwen2-audio": _qwen_audio,
    "qwen2.5-omni": _qwen_omni,
    "internvl": _internvl,
    "llava": _llava,
}
"""Families with a small model, by name: from Transformers, the family's settings, text settings and placeholders."""
