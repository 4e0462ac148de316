"""Sizes of a model, read from its ``config.json``, from which its FLOPs are counted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from brimful.base.checks import check_type, is_number, whole_number
from brimful.errors import SettingsError


@dataclass(frozen=True, kw_only=True)
class ModelSizes:
    """Sizes of a decoder, checked. ``CostModel.from_config`` explains them."""

    hidden_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    intermediate_size: float
    vocab_size: int
    experts_per_token: int = 1
    window: int | None = None
    windowed_share: float = 1.0

    def __post_init__(self) -> None:
        for name in _WHOLE_SIZES:
            whole_number(name, getattr(self, name), minimum=0 if name == "vocab_size" else 1)
        if not is_number(self.intermediate_size) or not 0 < self.intermediate_size < float("inf"):
            raise SettingsError(
                f"intermediate_size must be a number above 0 and is {self.intermediate_size!r}"
            )


_WHOLE_SIZES = (
    *("hidden_size", "num_layers", "num_attention_heads", "num_key_value_heads", "head_dim"),
    *("experts_per_token", "vocab_size"),
)


def sizes_of_config(config: Mapping[str, Any]) -> dict[str, Any]:
    """Read the arguments of ``CostModel.from_config`` from a Hugging Face configuration, under any
    of their names.

    Args:
        config: the parsed file; its part on the decoder may be under ``text_config``.

    Raises:
        SettingsError: a number is missing (the message has the accepted names), or sums of lengths
            and of squares do not describe the kind of attention.

    >>> config = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128,
    ...           "vocab_size": 100, "sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"]}
    >>> sizes = sizes_of_config(config)
    >>> sizes["head_dim"], sizes["window"], sizes["windowed_share"]
    (16, 32, 0.5)
    """
    check_type(
        "config", config, Mapping, "the mapping of a config.json", "read the file by json.load"
    )
    # Qwen2.5-Omni: the part with vision and audio input; the part that speaks is another model.
    thinker_config = config.get("thinker_config")
    if isinstance(thinker_config, Mapping):
        config = thinker_config
    text_config = config.get("text_config")
    if isinstance(text_config, Mapping):
        config = text_config
    if config.get("kv_lora_rank"):
        raise SettingsError(
            "the config has kv_lora_rank: attention with compressed keys is not described by "
            "these formulas; give linear and quadratic to CostModel, or use CostModel.fit"
        )
    num_layers = config_value(config, "num_hidden_layers", "num_layers")
    hidden_size = config_value(config, "hidden_size")
    num_heads = config_value(config, "num_attention_heads")
    window, windowed_share = _window_of(config, num_layers)
    return {
        "hidden_size": hidden_size,
        "num_layers": num_layers,
        "num_attention_heads": num_heads,
        "num_key_value_heads": config_value(config, "num_key_value_heads", default=num_heads),
        "head_dim": config_value(config, "head_dim", default=hidden_size // num_heads),
        "intermediate_size": _active_intermediate_size(config, num_layers),
        "vocab_size": config_value(config, "vocab_size", minimum=0),
        "window": window,
        "windowed_share": windowed_share,
    }


def config_value(
    config: Mapping[str, Any], *names: str, default: int | None = None, minimum: int = 1
) -> int:
    """Return the number under the first of these names that the config has, otherwise the default.

    Raises:
        SettingsError: no such name and no default, not a whole number, or a number below the
            minimum.
    """
    for name in names:
        if config.get(name) is not None:
            return whole_number(name, config[name], minimum=minimum)
    if default is None:
        present = ", ".join(sorted(config)[:12]) + (", …" if len(config) > 12 else "")
        raise SettingsError(
            f"the config has no {' or '.join(names)}; it has {present or 'nothing'}"
        )
    return default


def _active_intermediate_size(config: Mapping[str, Any], num_layers: int) -> float:
    """Return the width of the MLP that processes one token, as a mean over the layers.

    ::

        (sparse_layers · (experts_per_token · expert_size + shared_size) + dense_layers · dense_size) / num_layers
    """
    dense_size = config_value(config, "intermediate_size", "moe_intermediate_size")
    names = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token")
    experts_per_token = config_value(config, *names, default=0, minimum=0)
    if not experts_per_token:
        return dense_size
    expert_size = config_value(config, "moe_intermediate_size", default=dense_size)
    # DeepSeek's files give shared experts as a number of experts, Qwen's as a width.
    shared_size = (
        config_value(config, "n_shared_experts", "num_shared_experts", default=0, minimum=0)
        * expert_size
    )
    shared_size = config_value(
        config, "shared_expert_intermediate_size", default=shared_size, minimum=0
    )
    # A layer has experts if it is at a step of the pattern, after the first dense layers, and not
    # excluded by number.
    sparse_step = config_value(config, "decoder_sparse_step", default=1)
    first_sparse = config_value(config, "first_k_dense_replace", default=0, minimum=0)
    dense_layers = set(config.get("mlp_only_layers") or ())
    num_sparse = sum(
        layer >= first_sparse and (layer + 1) % sparse_step == 0 and layer not in dense_layers
        for layer in range(num_layers)
    )
    sparse_size = experts_per_token * expert_size + shared_size
    return (num_sparse * sparse_size + (num_layers - num_sparse) * dense_size) / num_layers


def _window_of(config: Mapping[str, Any], num_layers: int) -> tuple[int | None, float]:
    """Return the sliding window and the share of the layers with it; None and 1 without a
    window.
    """
    # Qwen's files contain a window that is used only with use_sliding_window; Mistral's use it
    # without this field.
    is_used = config.get(
        "use_sliding_window", not str(config.get("model_type", "")).startswith("qwen")
    )
    layer_types = config.get("layer_types")
    if layer_types:
        # The list of layers takes precedence over other fields.
        unknown_types = sorted(set(layer_types) - {"full_attention", "sliding_attention"})
        if unknown_types:
            raise SettingsError(
                f"the config has layers of type {', '.join(unknown_types)}, which these "
                "formulas do not describe; give linear and quadratic to CostModel, or use "
                "CostModel.fit"
            )
        num_windowed = sum(layer_type == "sliding_attention" for layer_type in layer_types)
        if not num_windowed:
            return None, 1.0
        return config_value(config, "sliding_window"), num_windowed / len(layer_types)
    if not is_used or config.get("sliding_window") is None:
        return None, 1.0
    if config.get("sliding_window_pattern"):
        # Every n-th layer attends to all tokens, as in Gemma.
        num_full = num_layers // config_value(config, "sliding_window_pattern")
    else:
        # The first layers attend to all tokens, as in Qwen.
        num_full = min(num_layers, config_value(config, "max_window_layers", default=0, minimum=0))
    return config_value(config, "sliding_window"), (num_layers - num_full) / num_layers
