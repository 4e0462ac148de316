"""Models to verify: a tiny random one of a real architecture, or one from a directory or the
hub.
"""

import difflib
import inspect
import math
from collections.abc import Mapping
from typing import Any

import torch

from brimful.base.optional import optional
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.media import MediaKind
from brimful.verify.modes import first_sentence

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

_MAX_PARAMETERS = 50_000_000
"""Parameters that a small model may have; more means that its configuration names its sizes in an
unknown way.
"""

_SIZES_AND_NAMES = (
    (2048, ("max_position_embeddings", "n_positions")),
    (128, ("vocab_size", "vocab_size_per_layer_input")),
    (96, ("intermediate_size", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim")),
    (
        64,
        ("hidden_size", "d_model", "hidden_size_global", "n_embd", "embed_dim", "out_hidden_size"),
    ),
    (32, ("moe_intermediate_size", "shared_expert_intermediate_size")),
    (
        16,
        (
            "head_dim",
            "kv_lora_rank",
            "q_lora_rank",
            "qk_rope_head_dim",
            "qk_nope_head_dim",
            "v_head_dim",
        ),
    ),
    (
        16,
        (
            "linear_key_head_dim",
            "linear_value_head_dim",
            "state_size",
            "mamba_d_state",
            "mamba_d_head",
        ),
    ),
    (16, ("mamba_chunk_size", "chunk_size")),
    (8, ("hidden_size_per_layer_input", "sliding_window", "rotary_dim", "mamba_n_heads")),
    (
        4,
        (
            "num_attention_heads",
            "n_head",
            "num_heads",
            "num_experts",
            "num_local_experts",
            "n_routed_experts",
        ),
    ),
    (4, ("linear_num_value_heads", "encoder_attention_heads", "decoder_attention_heads")),
    (4, ("num_encoder_attention_heads", "num_decoder_attention_heads")),
    (2, ("num_key_value_heads", "num_experts_per_tok", "linear_num_key_heads", "eos_token_id")),
    (2, ("encoder_layers", "decoder_layers", "num_encoder_layers", "num_decoder_layers")),
    (
        1,
        (
            "n_group",
            "topk_group",
            "first_k_dense_replace",
            "depth",
            "mamba_n_groups",
            "bos_token_id",
        ),
    ),
    (0, ("pad_token_id",)),
)
"""Small sizes, and the names that configurations use for them; windows are shorter than the samples
made for them.

The order counts if two names mean one field: the last one wins.
"""

_SIZES = {name: size for size, names in _SIZES_AND_NAMES for name in names}

_SET_EVEN_IF_NONE = ("head_dim", "num_key_value_heads", "n_routed_experts", "num_experts_per_tok")
"""Names that are set even if the configuration has None, for models that need them."""

_MROPE = {
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
}
_SPECIAL: dict[str, dict[str, Any]] = {
    "mamba2": {"num_heads": 8, "head_dim": 16, "n_groups": 2},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "bamba": {"attn_layer_indices": [1]},
    "blt": {"encoder_hash_byte_group_vocab": 64, "local_attention_window_len": 8},
    "cohere_compass_text": {"rope_parameters": {"full_attention": _MROPE["rope_parameters"]}},
    "dbrx": {
        "attn_config": {"kv_n_heads": 2, "rope_theta": 10000.0, "clip_qkv": 8.0},
        "ffn_config": {"hidden_size": 64, "ffn_hidden_size": 96, "moe_top_k": 2},
    },
    "dots1": {"n_shared_experts": 1},
    "falcon_h1": {"mamba_d_ssm": 128},
    "gemma4_text": {"global_head_dim": 16},
    "gemma4_unified_text": {"global_head_dim": 16},
    "gpt_neo": {"attention_types": [[["global", "local"], 1]], "num_layers": 2, "window_size": 8},
    "jamba": {
        "attn_layer_period": 2,
        "attn_layer_offset": 1,
        "expert_layer_period": 2,
        "expert_layer_offset": 1,
    },
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "qwen2_vl_text": _MROPE,
    "qwen2_5_vl_text": _MROPE,
    "qwen2_5_vl_vision": {"fullatt_block_indexes": [1]},
    "qwen2_5_omni_text": _MROPE,
    "qwen2_5_omni_vision_encoder": {"fullatt_block_indexes": [1]},
    "qwen2_5_omni_audio_encoder": {"output_dim": 64},
    "qwen3_vl_text": _MROPE,
    "qwen3_vl_vision": {"deepstack_visual_indexes": [0]},
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "reformer": {
        "is_decoder": True,
        "axial_pos_embds": False,
        "attention_head_size": 16,
        "feed_forward_size": 96,
    },
    "recurrent_gemma": {"num_hidden_layers": 3},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "xlnet": {"d_inner": 96, "d_head": 16},
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
}
"""Further settings of single architectures: head counts that match, every kind of layer."""


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
        # On the meta device a model takes no memory, so one that does not shrink is found before it
        # is allocated.
        with torch.device("meta"):
            size = auto_class.from_config(config).num_parameters()
        if size > _MAX_PARAMETERS:
            raise SettingsError(
                f"{setting('model_type', model_type)}: its configuration does not shrink ({size:,} "
                "parameters): make a small model of it and give its directory as "
                f"{setting('model')}"
            )
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
        model = auto_class.from_config(config).to(dtype_named(dtype))
        for parameter in model.parameters():
            if parameter.ndim > 1:
                torch.nn.init.normal_(parameter, 0.0, 0.1)
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


def small_config(config_class: Any) -> Any:
    """Return a configuration of this class with all its sizes made small, and every kind of layer
    once.
    """

    def is_property(name: str) -> bool:
        return isinstance(inspect.getattr_static(config_class, name, None), property)

    default = config_class()
    # Sizes that differ by layer can be read as one value only with this.
    default.__dict__["allow_global_per_layer_attribute_access"] = True
    sizes: dict[str, Any] = {
        name: size
        for name, size in _SIZES.items()
        if hasattr(default, name)
        and (getattr(default, name) is not None or name in _SET_EVEN_IF_NONE)
        and not is_property(name)
    }
    if hasattr(default, "kv_lora_rank"):  # latent attention has as many key heads as query heads
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    if getattr(default, "pad_token_id", None) is None:
        sizes["pad_token_id"] = 0
    # Every kind of layer occurs, because each may leak in its own way; two layers if it has one
    # kind.
    num_layers = 2
    types_name = (getattr(config_class, "attribute_map", None) or {}).get(
        "layer_types", "layer_types"
    )
    if (layer_types := getattr(default, "layer_types", None)) and not is_property(types_name):
        kinds = list(dict.fromkeys(layer_types))
        shares_keys = getattr(
            default, "num_kv_shared_layers", 0
        )  # the second half takes keys and values of the first
        sizes |= {"num_kv_shared_layers": len(kinds)} if shares_keys else {}
        sizes[types_name] = kinds * (1 if len(kinds) > 1 and not shares_keys else 2)
        num_layers = len(sizes[types_name])
    for name in ("num_hidden_layers", "n_layer"):
        if hasattr(default, name) and not is_property(name):
            sizes[name] = num_layers
    # Configurations of parts (of vision, of experts) are made small in the same way.
    for name, part in vars(default).items():
        if getattr(part, "model_type", "") and hasattr(part, "to_dict"):
            sizes[name] = small_config(type(part)).to_dict()
    return config_class(**{**sizes, **_SPECIAL.get(config_class.model_type, {})})


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
