"""A model's ``config.json``: the sizes that its arithmetic is counted from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from brimful.checks import check_type
from brimful.errors import SettingsError

__all__ = ["require_whole", "sizes_of_config"]


def sizes_of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of ``CostModel.from_config`` that a Hugging Face configuration says, under its many names.

    Args:
        config: the parsed file, or the part of it on the decoder under ``text_config``.

    Raises:
        SettingsError: a number is missing (named, with the names looked for), or the attention is of a kind that
            a sum of lengths and of squares does not describe.

    >>> config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    ...           "vocab_size": 100, "sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"]}
    >>> sizes = sizes_of_config(config)
    >>> sizes["head_dim"], sizes["window"], sizes["windowed_share"]
    (16, 32, 0.5)
    """
    check_type("config", config, Mapping, "the mapping of a config.json", "read the file by json.load")
    text = config.get("text_config")
    if isinstance(text, Mapping):
        config = text
    if config.get("kv_lora_rank"):
        raise SettingsError(
            "the config has kv_lora_rank: attention with compressed keys is not described by these formulae; "
            "give linear and quadratic to CostModel, or use CostModel.fit"
        )
    layers = _number(config, "num_hidden_layers", "num_layers")
    hidden = _number(config, "hidden_size")
    heads = _number(config, "num_attention_heads")
    window, share = _window_of(config, layers)
    return {
        "hidden_size": hidden,
        "num_layers": layers,
        "num_attention_heads": heads,
        "num_key_value_heads": _number(config, "num_key_value_heads", default=heads),
        "head_dim": _number(config, "head_dim", default=hidden // heads),
        "intermediate_size": _active_intermediate_size(config, layers),
        "vocab_size": _number(config, "vocab_size", least=0),
        "window": window,
        "windowed_share": share,
    }


def require_whole(name: str, value: object, *, least: int = 1) -> None:
    """Refuse what is no whole number of at least ``least``, by name.

    Raises:
        SettingsError: it is not.
    """
    whole = isinstance(value, (int, np.integer)) and not isinstance(value, bool)
    if not whole or int(value) < least:  # type: ignore[call-overload]
        raise SettingsError(f"{name} must be a whole number of at least {least} and is {value!r}")


def _number(config: Mapping[str, Any], *names: str, default: int | None = None, least: int = 1) -> int:
    """The first of the names that the config has."""
    for name in names:
        if config.get(name) is not None:
            require_whole(name, config[name], least=least)
            return int(config[name])
    if default is None:
        raise SettingsError(f"the config has no {' or '.join(names)}; it has {_shown(config)}")
    return default


def _shown(names: Iterable[str]) -> str:
    ordered = sorted(names)
    return ", ".join(ordered[:12]) + (", …" if len(ordered) > 12 else "") if ordered else "nothing"


def _active_intermediate_size(config: Mapping[str, Any], layers: int) -> float:
    """Width of the MLP that one token passes, mean over the layers."""
    dense = _number(config, "intermediate_size", "moe_intermediate_size")
    names = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token")
    experts = _number(config, *names, default=0, least=0)
    if not experts:
        return dense
    expert = _number(config, "moe_intermediate_size", default=dense)
    shared = _number(config, "n_shared_experts", "num_shared_experts", default=0, least=0) * expert
    shared = _number(config, "shared_expert_intermediate_size", default=shared, least=0)
    every = _number(config, "decoder_sparse_step", default=1)
    first = _number(config, "first_k_dense_replace", default=0, least=0)
    plain = set(config.get("mlp_only_layers") or ())
    sparse = sum(layer >= first and (layer + 1) % every == 0 and layer not in plain for layer in range(layers))
    return (sparse * (experts * expert + shared) + (layers - sparse) * dense) / layers


def _window_of(config: Mapping[str, Any], layers: int) -> tuple[int | None, float]:
    """The sliding window and the share of the layers that have it."""
    # Qwen's files carry a window that is not used unless they say so; Mistral's say nothing and use it.
    used = config.get("use_sliding_window", not str(config.get("model_type", "")).startswith("qwen"))
    window = config.get("sliding_window") if used else None
    kinds = config.get("layer_types")
    if kinds:
        unknown = sorted(set(kinds) - {"full_attention", "sliding_attention"})
        if unknown:
            raise SettingsError(
                f"the config has layers of type {', '.join(unknown)}, which these formulae do not describe; give linear "
                f"and quadratic to CostModel, or use CostModel.fit"
            )
        sliding = sum(kind == "sliding_attention" for kind in kinds)
        if not sliding:
            return None, 1.0
        return _number(config, "sliding_window"), sliding / len(kinds)
    if window is None:
        return None, 1.0
    if config.get("sliding_window_pattern"):
        full = layers // _number(config, "sliding_window_pattern")
        return _number(config, "sliding_window"), (layers - full) / layers
    full = min(layers, _number(config, "max_window_layers", default=0, least=0))
    return _number(config, "sliding_window"), (layers - full) / layers
