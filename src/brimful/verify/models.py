"""Models to verify: a tiny random one of a real architecture, or one from a directory or the
hub.
"""

import difflib
import math
from collections.abc import Mapping
from typing import Any

import torch

from brimful.base.optional import optional
from brimful.base.wording import setting
from brimful.doctor.probing.modes import first_sentence
from brimful.errors import SettingsError
from brimful.media import MediaKind
from brimful.trees.small_models import small_config, small_model

WITHOUT_SMALL_FORM = {
    "gemma4_assistant": "a draft model: it reads keys and values of the model that it drafts for",
    "gemma4_unified_assistant": "a draft model: it reads keys and values of the model that it "
    "drafts for",
    "git": "a caption model: without an image it has no logits to train",
    "musicgen": "the decoder of an audio model: its tokens are codebooks, several for each place",
    "musicgen_melody": "the decoder of an audio model: its tokens are codebooks, several for each "
    "place",
}
"""Causal types of Transformers that no rows of text can be given to, and why; ``docs/verify.md``
lists them.
"""


def tiny_model(
    model_type: str, *, dtype: str = "float32", device: str = "cpu", seed: int = 0
) -> Any:
    """Build a random model of an architecture, small enough for any machine: a few layers of each
    kind, 128 tokens.

    Weights are drawn wider than for training (standard deviation 0.1), so that effects of tokens on
    each other show.

    Args:
        model_type: as in a ``config.json``: qwen2, llama, gemma3, mamba2, …
        dtype: ``float32``, ``bfloat16``, ``float16`` or ``float64``.
        device: ``cpu``, ``cuda``, ``cuda:1``.
        seed: of the weights.

    Raises:
        SettingsError: unknown type, or one that has no small form.
        MissingExtraError: Transformers is not installed.

    >>> type(tiny_model("qwen2")).__name__
    'Qwen2ForCausalLM'
    """
    transformers = _transformers()
    try:
        config = _tiny_config(transformers, model_type)
        auto_class = _auto_class(transformers, config.model_type)
        return _random_model(auto_class, config, dtype, device, seed)
    except SettingsError:
        raise
    except Exception as error:  # configurations check themselves in any way they like
        raise SettingsError(
            f"{setting('model_type', model_type)}: no causal language model of it can be made "
            f"small ({type(error).__name__}: {first_sentence(error)}); give the type of its text "
            f"model, or make one yourself and give its directory as {setting('model')}"
        ) from error


def _transformers() -> Any:
    with optional("transformers", "text", "verify"):
        import transformers
    return transformers


def _random_model(auto_class: Any, config: Any, dtype: str, device: str, seed: int) -> Any:
    """Build a model, and draw its weights with a standard deviation of 0.1, the same for each
    seed.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = small_model(
            lambda config: auto_class.from_config(config).to(dtype_named(dtype)), config
        )
    return model.to(device_named(device)).eval()


def load_model(path: str, *, dtype: str = "float32", device: str = "cpu") -> Any:
    """Load a causal language model, also one with towers for media, from a directory or hub id.

    Raises:
        SettingsError: no such model exists, or it does not predict tokens.
        MissingExtraError: Transformers is not installed.
    """
    transformers = _transformers()
    torch_device = device_named(device)
    try:
        with optional("transformers", "text", f"the model {path}"):
            config = transformers.AutoConfig.from_pretrained(path)
            auto_class = _auto_class(transformers, config.model_type)
            model = auto_class.from_pretrained(path, dtype=dtype_named(dtype))
    except (OSError, ValueError) as error:
        raise SettingsError(
            f"{setting('model', path)}: no causal language model could be loaded: "
            f"{first_sentence(error)}"
        ) from error
    return model.to(torch_device).eval()


def dtype_named(name: str) -> Any:
    """Return the dtype of torch with this name.

    Raises:
        SettingsError: weights cannot have it.
    """
    names = ("float32", "bfloat16", "float16", "float64")
    if name not in names:
        raise SettingsError(f"dtype {name!r} is none of {', '.join(names)}")
    return getattr(torch, name)


def device_named(name: str) -> Any:
    """Return the device with this name, after a tensor was made on it.

    Raises:
        SettingsError: this machine does not have it.
    """
    try:
        device = torch.device(name)
        torch.empty(1, device=device)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(
            f"{setting('device', name)}: {str(error).splitlines()[0]}; use "
            f"{setting('device', 'cpu')}"
        ) from error
    return device


def _tiny_config(transformers: Any, model_type: str) -> Any:
    """Return a small configuration of an architecture, of its text model if it has one.

    Raises:
        SettingsError: unknown type, or one that has no small form.
    """
    mapping = transformers.CONFIG_MAPPING
    if model_type not in mapping:
        similar = difflib.get_close_matches(
            model_type.lower().replace("-", "_"), list(mapping.keys()), n=4, cutoff=0.5
        )
        raise SettingsError(
            f"{setting('model_type', model_type)} is not in Transformers "
            f"{transformers.__version__}: "
            f"did you mean {', '.join(similar) or 'the model_type of its config.json'}?"
        )
    if model_type in WITHOUT_SMALL_FORM:
        raise SettingsError(
            f"{setting('model_type', model_type)}: {WITHOUT_SMALL_FORM[model_type]}; it cannot be "
            "packed"
        )
    text_type = f"{model_type}_text"
    has_text_model = text_type in mapping and text_type in _auto_names("CAUSAL_LM")
    return small_config(mapping[text_type if has_text_model else model_type])


def _auto_names(task: str) -> Any:
    """Return the names of model classes for a task, by type."""
    from transformers.models.auto import modeling_auto

    return getattr(modeling_auto, f"MODEL_FOR_{task}_MAPPING_NAMES")


def _auto_class(transformers: Any, model_type: str) -> Any:
    """Return the class that makes causal language models of a type; models with towers have one of
    their own.
    """
    if model_type in _auto_names("MULTIMODAL_LM") and model_type not in _auto_names("CAUSAL_LM"):
        return transformers.AutoModelForMultimodalLM
    return transformers.AutoModelForCausalLM


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
    transformers = _transformers()
    family = str(settings["family"])
    if family not in _MODEL_TYPES:
        raise SettingsError(
            f"no small model of {family} is built in: name a model of your own by "
            f"{setting('model', 'DIR')}"
        )
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
    return _random_model(transformers.AutoModelForMultimodalLM, config, dtype, device, seed)


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
