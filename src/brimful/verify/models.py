"""Models to verify: a tiny random one of a real architecture, or one from a directory or the hub."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

import torch

from brimful.errors import SettingsError, missing_extra
from brimful.messages import setting

__all__ = ["WITHOUT_SMALL_FORM", "load_model", "tiny_model"]

WITHOUT_SMALL_FORM = {
    "gemma4_assistant": "a draft model: it reads keys and values of the model that it drafts for",
    "gemma4_unified_assistant": "a draft model: it reads keys and values of the model that it drafts for",
    "git": "a caption model: without an image it has no logits to train",
    "musicgen": "the decoder of an audio model: its tokens are codebooks, several for each place",
    "musicgen_melody": "the decoder of an audio model: its tokens are codebooks, several for each place",
}
"""Causal types of Transformers that no rows of text can be given to, and why; ``docs/verify.md`` lists them."""

_LARGEST = 50_000_000

_SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "vocab_size_per_layer_input": 128,
    "hidden_size": 64,
    "d_model": 64,
    "hidden_size_per_layer_input": 8,
    "hidden_size_global": 64,
    "intermediate_size": 96,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 2048,
    "sliding_window": 8,
    "n_embd": 64,
    "n_head": 4,
    "n_inner": 96,
    "n_positions": 2048,
    "rotary_dim": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 32,
    "shared_expert_intermediate_size": 32,
    "first_k_dense_replace": 1,
    "kv_lora_rank": 16,
    "q_lora_rank": 16,
    "qk_rope_head_dim": 16,
    "qk_nope_head_dim": 16,
    "v_head_dim": 16,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 16,
    "linear_value_head_dim": 16,
    "state_size": 16,
    "mamba_d_state": 16,
    "mamba_n_heads": 8,
    "mamba_d_head": 16,
    "mamba_n_groups": 1,
    "mamba_chunk_size": 16,
    "chunk_size": 16,
    "depth": 1,
    "num_heads": 4,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "num_encoder_layers": 2,
    "num_decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "num_encoder_attention_heads": 4,
    "num_decoder_attention_heads": 4,
    "encoder_ffn_dim": 96,
    "decoder_ffn_dim": 96,
    "embed_dim": 64,
    "out_hidden_size": 64,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
"""Sizes by the names that configurations use; windows are shorter than the samples that are made for them."""

_WHERE_NONE = ("head_dim", "num_key_value_heads", "n_routed_experts", "num_experts_per_tok")
"""Set where a configuration has them as None, for models that then cannot do without."""

_MROPE = {"rope_parameters": {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}}
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
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1, "expert_layer_period": 2, "expert_layer_offset": 1},
    "granitemoehybrid": {"layer_types": ["mamba", "attention"]},
    "lfm2": {"layer_types": ["conv", "full_attention"]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "qwen2_vl_text": _MROPE,
    "qwen2_5_vl_text": _MROPE,
    "qwen4_exp_text": {
        "indexer_n_heads": 4,
        "indexer_kv_heads": 1,
        "indexer_head_dim": 16,
        "indexer_budget": 8,
        "indexer_compress_ratio": 2,
    },
    "reformer": {"is_decoder": True, "axial_pos_embds": False, "attention_head_size": 16, "feed_forward_size": 96},
    "recurrent_gemma": {"num_hidden_layers": 3},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "zamba2": {"num_hidden_layers": 4, "layers_block_type": ["linear_attention", "hybrid"] * 2},
    "xlnet": {"d_inner": 96, "d_head": 16},
    "zaya": {"num_experts_per_tok": 1, "router_hidden_size": 16},
}
"""What one architecture needs beside: head counts that fit together, every kind of its layers."""


def tiny_model(model_type: str, *, dtype: str = "float32", device: str = "cpu", seed: int = 0) -> Any:
    """A random model of an architecture, small enough for any machine: a few layers of each kind, 128 tokens.

    Weights are drawn wider than for training (standard deviation 0.1), so that what one token does to another shows.

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
    place = _device(device)
    try:
        config = _tiny_config(transformers, model_type)
        auto = _auto_class(transformers, config, model_type)
        with torch.device("meta"):
            size = auto.from_config(config).num_parameters()
        if size > _LARGEST:
            raise SettingsError(
                f"{setting('model_type', model_type)}: its configuration does not shrink ({size:,} parameters): make a small "
                f"model of it and give its directory as {setting('model')}"
            )
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            model = auto.from_config(config).to(_dtype(dtype))
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    torch.nn.init.normal_(parameter, 0.0, 0.1)
    except SettingsError:
        raise
    except Exception as error:  # configurations check themselves in any way they like
        raise SettingsError(
            f"{setting('model_type', model_type)}: no small model of it can be built ({type(error).__name__}: {error}); make one "
            f"yourself and give its directory as {setting('model')}"
        ) from error
    return model.to(place).eval()


def load_model(path: str, *, dtype: str = "float32", device: str = "cpu") -> Any:
    """A causal language model from a directory or hub id.

    Raises:
        SettingsError: there is no such model, or it is none that predicts tokens.
        MissingExtraError: Transformers is not installed.
    """
    transformers = _transformers()
    place = _device(device)
    try:
        model = transformers.AutoModelForCausalLM.from_pretrained(path, dtype=_dtype(dtype))
    except (OSError, ValueError) as error:
        reason = " ".join(str(error).split())[:300]
        raise SettingsError(f"{setting('model', path)}: no causal language model could be loaded: {reason}") from error
    return model.to(place).eval()


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise missing_extra("transformers", "text", "verify") from error
    return transformers


def _dtype(name: str) -> Any:
    dtypes = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16, "float64": torch.float64}
    if name not in dtypes:
        raise SettingsError(f"dtype {name!r} is none of {', '.join(dtypes)}")
    return dtypes[name]


def _device(name: str) -> Any:
    try:
        place = torch.device(name)
        torch.empty(1, device=place)
    except (RuntimeError, AssertionError) as error:
        raise SettingsError(
            f"{setting('device', name)}: {str(error).splitlines()[0]}; use {setting('device', 'cpu')}"
        ) from error
    return place


def _tiny_config(transformers: Any, model_type: str) -> Any:
    known = transformers.CONFIG_MAPPING
    if model_type not in known:
        near = difflib.get_close_matches(model_type.lower().replace("-", "_"), list(known.keys()), n=4, cutoff=0.5)
        hint = f"did you mean {', '.join(near)}?" if near else "use the model_type of its config.json"
        raise SettingsError(
            f"{setting('model_type', model_type)} is no architecture of Transformers {transformers.__version__}: {hint}"
        )
    if model_type in WITHOUT_SMALL_FORM:
        raise SettingsError(
            f"{setting('model_type', model_type)}: {WITHOUT_SMALL_FORM[model_type]}; it cannot be packed"
        )
    text = f"{model_type}_text"
    if text in known and text in _causal_names():
        model_type = text
    return _shrink(known[model_type])


def _shrink(kind: Any) -> Any:
    """A configuration of this class with every size that it has made small, and every kind of layer once."""
    base = kind()
    base.__dict__["allow_global_per_layer_attribute_access"] = True
    sizes = {
        key: value
        for key, value in _SIZES.items()
        if getattr(base, key, None) is not None or (key in _WHERE_NONE and hasattr(base, key))
    }
    sizes = {
        key: value for key, value in sizes.items() if not isinstance(inspect.getattr_static(kind, key, 0), property)
    }
    if hasattr(base, "kv_lora_rank"):  # latent attention has as many key heads as query heads
        sizes["num_key_value_heads"] = sizes["num_attention_heads"]
    if getattr(base, "pad_token_id", None) is None:
        sizes["pad_token_id"] = 0
    layers = 2
    name = (getattr(kind, "attribute_map", None) or {}).get("layer_types", "layer_types")
    settable = not isinstance(inspect.getattr_static(kind, name, None), property)
    if (types := getattr(base, "layer_types", None)) and settable:
        kinds = list(dict.fromkeys(types))
        shared = getattr(base, "num_kv_shared_layers", 0)  # the second half takes keys and values of the first
        sizes |= {"num_kv_shared_layers": len(kinds)} if shared else {}
        sizes[name] = kinds * (1 if len(kinds) > 1 and not shared else 2)
        layers = len(sizes[name])
    for key in ("num_hidden_layers", "n_layer"):
        if hasattr(base, key) and not isinstance(inspect.getattr_static(kind, key, 0), property):
            sizes[key] = layers
    for name, part in vars(base).items():
        if getattr(part, "model_type", "") and hasattr(part, "to_dict"):
            sizes[name] = _shrink(type(part)).to_dict()
    return kind(**{**sizes, **_SPECIAL.get(kind.model_type, {})})


def _causal_names() -> Any:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return MODEL_FOR_CAUSAL_LM_MAPPING_NAMES


def _auto_class(transformers: Any, config: Any, model_type: str) -> Any:
    if config.model_type in _causal_names():
        return transformers.AutoModelForCausalLM
    from transformers.models.auto.modeling_auto import MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES

    if config.model_type in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:
        return transformers.AutoModelForImageTextToText
    raise SettingsError(
        f"{setting('model_type', model_type)}: Transformers has no causal language model of it; give the type of its text model"
    )
