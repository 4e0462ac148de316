"""Small random models of the architecture of a model, and what is measured on them: its own weights
stay untouched.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, TypeVar

import torch

from brimful.base.wording import setting
from brimful.errors import SettingsError

_Answer = TypeVar("_Answer")

_MAX_PARAMETERS = 50_000_000
"""Parameters that a small model may have; more means that its configuration names its sizes in an
unknown way.
"""

_SIZES_AND_NAMES = (
    (2048, "max_position_embeddings n_positions"),
    (128, "vocab_size vocab_size_per_layer_input"),
    (96, "intermediate_size n_inner encoder_ffn_dim decoder_ffn_dim"),
    (64, "hidden_size d_model hidden_size_global n_embd embed_dim out_hidden_size"),
    (32, "moe_intermediate_size shared_expert_intermediate_size"),
    (16, "head_dim kv_lora_rank q_lora_rank qk_rope_head_dim qk_nope_head_dim v_head_dim"),
    (16, "linear_key_head_dim linear_value_head_dim state_size mamba_d_state mamba_d_head"),
    (16, "mamba_chunk_size chunk_size"),
    (8, "hidden_size_per_layer_input sliding_window rotary_dim mamba_n_heads"),
    (4, "num_attention_heads n_head num_heads num_experts num_local_experts n_routed_experts"),
    (4, "linear_num_value_heads encoder_attention_heads decoder_attention_heads"),
    (4, "num_encoder_attention_heads num_decoder_attention_heads"),
    (2, "num_key_value_heads num_experts_per_tok linear_num_key_heads eos_token_id"),
    (2, "encoder_layers decoder_layers num_encoder_layers num_decoder_layers"),
    (1, "n_group topk_group first_k_dense_replace depth mamba_n_groups bos_token_id"),
    (0, "pad_token_id"),
)
"""Small sizes, and the names that configurations use for them; windows are shorter than the samples
made for them.

The order counts if two names mean one field: the last one wins.
"""

_SIZES = {name: size for size, names in _SIZES_AND_NAMES for name in names.split()}

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


def small_config(config_class: Any, given: Any = None) -> Any:
    """Return a configuration of this class with all its sizes made small, and every kind of layer
    once.

    Args:
        config_class: of Transformers, or with its names.
        given: a configuration of the class; its switches and names are kept, and its parts.
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
        distinct_types = list(dict.fromkeys(layer_types))
        shares_keys = getattr(
            default, "num_kv_shared_layers", 0
        )  # the second half takes keys and values of the first
        sizes |= {"num_kv_shared_layers": len(distinct_types)} if shares_keys else {}
        sizes[types_name] = distinct_types * (
            1 if len(distinct_types) > 1 and not shares_keys else 2
        )
        num_layers = len(sizes[types_name])
    for name in ("num_hidden_layers", "n_layer"):
        if hasattr(default, name) and not is_property(name):
            sizes[name] = num_layers
    # Configurations of parts (of vision, of experts) are made small in the same way.
    for name, child in vars(default if given is None else given).items():
        if getattr(child, "model_type", "") and hasattr(child, "to_dict"):
            sizes[name] = small_config(type(child), None if given is None else child).to_dict()
        elif isinstance(child, (bool, str)) and name[0] != "_" and child != getattr(default, name):
            sizes.setdefault(name, child)
    return config_class(**{**sizes, **_SPECIAL.get(config_class.model_type, {})})


def measured(
    question: Callable[[Any], _Answer],
) -> Callable[[Any, Any], _Answer | None]:
    """Ask a question of a small model of a class and configuration, once for each.

    The answer is None if no such model can be made, or it does not answer: custom code may name its
    sizes in another way.

    Args:
        question: function of a model in ``eval()`` on the CPU, without gradients.
    """
    answers: dict[tuple[Any, str], _Answer | None] = {}

    @wraps(question)
    def ask(model_class: Any, config: Any) -> _Answer | None:
        # Configurations and models check themselves in any way they like.
        with suppress(Exception), _quiet():
            small = small_config(type(config), config)
            key = model_class, small.to_json_string()
            if key not in answers:
                answers[key] = None
                # The caller's random numbers and device are its own.
                with torch.random.fork_rng(devices=[]), torch.device("cpu"), torch.no_grad():
                    torch.manual_seed(0)
                    answers[key] = question(small_model(model_class, small).float().eval())
            return answers[key]
        return None

    return ask


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence what Transformers says of a model that the caller does not know."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.setLevel(level)


def small_model(make: Callable[[Any], Any], config: Any) -> Any:
    """Build a random model, whose matrices have a standard deviation of 0.1: wider than for
    training, so that effects of tokens on each other show.

    Raises:
        SettingsError: its configuration does not shrink.
    """
    # On the meta device a model takes no memory, so one that does not shrink is found before it is
    # allocated.
    with torch.device("meta"):
        size = sum(parameter.numel() for parameter in make(config).parameters())
    if size > _MAX_PARAMETERS:
        raise SettingsError(
            f"{setting('model_type', config.model_type)}: its configuration does not shrink "
            f"({size:,} parameters): make a small model of it and give its directory as "
            f"{setting('model')}"
        )
    model = make(config)
    for parameter in model.parameters():
        if parameter.ndim > 1:
            torch.nn.init.normal_(parameter, 0.0, 0.1)
    return model


@measured
def sees_later_tokens(model: Any) -> bool:
    """Return true if another last token moves what the model returns for earlier ones."""
    tokens = torch.randint(8, 100, (1, 12))
    others = tokens.clone()
    others[0, -1] = 101
    one, other = (model(input_ids=ids)[0] for ids in (tokens, others))
    if one.shape[:2] != tokens.shape:
        raise ValueError("no values for each token")
    return bool((one[:, :-1] - other[:, :-1]).abs().max() > 1e-4 * one.abs().max())
