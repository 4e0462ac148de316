"""Tiny random models of the families with media, for the packs of a processor's settings."""

import math
from collections.abc import Mapping
from typing import Any

from brimful.base.optional import optional
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.media import MediaKind
from brimful.verify.models import device_named, small_config, with_random_weights

_MODEL_TYPES = {
    "qwen2-vl": "qwen2_vl",
    "qwen2.5-vl": "qwen2_5_vl",
    "qwen3-vl": "qwen3_vl",
    "qwen2-audio": "qwen2_audio",
    "qwen2.5-omni": "qwen2_5_omni_thinker",
    "internvl": "internvl",
    "llava": "llava",
}
"""``model_type`` of the families with a small model; of Qwen2.5-Omni, the part that reads."""

_MAX_POSITIONS = 32_768
"""Tokens that a sample with media may have."""


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
    if family not in _MODEL_TYPES:
        raise SettingsError(
            f"no small model of {family} is built in: name a model of your own by {setting('model', 'DIR')}"
        )
    torch_device = device_named(device)
    config = small_config(transformers.CONFIG_MAPPING[_MODEL_TYPES[family]])
    text = config.text_config
    text.vocab_size, text.max_position_embeddings = vocab, _MAX_POSITIONS
    config.tie_word_embeddings = text.tie_word_embeddings = False
    for number, kind in enumerate(MediaKind):
        for name in (f"{kind.value}_token_id", f"{kind.value}_token_index"):
            if hasattr(config, name):
                setattr(config, name, token_ids.get(kind, vocab - 1 - number))
    if family == "qwen2.5-omni":
        # Ids that begin a medium, by which the model finds media if positions are not given, are
        # not in the vocabulary.
        config.audio_start_token_id, config.vision_start_token_id = vocab, vocab + 1
    if family == "qwen2-audio":
        audio = settings["audio"]
        columns = audio["chunk_length"] * audio["sampling_rate"] // audio["hop_length"]
        config.audio_config.max_source_positions = columns // 2
    else:
        _fit_vision(config, family, settings["image"])
        config.vision_config.tokens_per_second = tokens_per_second
    auto_class = transformers.AutoModelForMultimodalLM
    model = with_random_weights(lambda: auto_class.from_config(config), dtype, seed)
    return model.to(torch_device).eval()


def _fit_vision(config: Any, family: str, image: Mapping[str, Any]) -> None:
    """Give the vision tower the sizes of a processor's images."""
    vision = config.vision_config
    if family == "internvl":
        # Four patches are one token. The processor's files do not give the patch size; tiles and
        # tokens leave one choice.
        width, height = int(image["width"]), int(image["height"])
        patch = math.isqrt(width * height // (4 * int(image["image_seq_length"])))
        vision.image_size, vision.patch_size = [height, width], [patch, patch]
        config.image_seq_length = image["image_seq_length"]
    elif family == "llava":
        vision.image_size, vision.patch_size = image["width"], image["patch_size"]
        config.vision_feature_select_strategy = image["vision_feature_select_strategy"]
    else:
        vision.patch_size, vision.spatial_merge_size = image["patch_size"], image["merge_size"]
        vision.temporal_patch_size = image["temporal_patch_size"]
