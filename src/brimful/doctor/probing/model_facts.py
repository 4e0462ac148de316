"""Facts of a model that a batch does not tell: special tokens, first position, rounding."""

from typing import Any

import torch

_PARITY_LIMITS = {
    torch.float64: 1e-9,
    torch.float32: 1e-5,
    torch.float16: 1e-2,
    torch.bfloat16: 6e-2,
}
"""Relative difference that rounding explains, by dtype: kernels sum packed rows in another order.
In bf16, of 8 bits, one rounding is 4e-3, and they add up.
"""

_POSITIONS_BEHIND_PADDING = frozenset(
    {"roberta", "xlm-roberta", "xlm-roberta-xl", "camembert", "mpnet", "esm", "data2vec-text"}
    | {"roberta-prelayernorm", "xmod", "luke", "longformer"}
)
"""Types whose positions begin at ``pad_token_id + 1``."""


def config_of(model: torch.nn.Module) -> Any:
    """Return the configuration of the model, or of the first module in it that has one; None if
    none has.
    """
    return next((module.config for module in model.modules() if hasattr(module, "config")), None)


def position_start_of(config: Any) -> int:
    """Return the position of the first token of a sample."""
    if getattr(config, "model_type", "") in _POSITIONS_BEHIND_PADDING:
        return int(getattr(config, "pad_token_id", None) or 0) + 1
    return 0


def parity_limit_of(dtype: Any) -> float:
    """Return the relative difference that rounding explains in a dtype."""
    return _PARITY_LIMITS.get(dtype, _PARITY_LIMITS[torch.bfloat16])


def media_tokens(config: Any) -> list[int]:
    """Return the tokens that stand for images, videos and audio: they stay when tokens are
    changed.
    """
    return tokens_of_config(config, "image", "video", "audio", "vision_start", "vision_end")


def tokens_of_config(config: Any, *names: str) -> list[int]:
    """Return the tokens that a configuration has under these names: ``pad`` for
    ``pad_token_id``.
    """
    values = [
        getattr(config, f"{name}_{kind}", None)
        for name in names
        for kind in ("token_id", "token_index")
    ]
    return [value for value in values if isinstance(value, int)]


def at_least_float32(tensor: torch.Tensor) -> torch.Tensor:
    """Convert a tensor to float32; float64 stays."""
    return tensor if tensor.dtype == torch.float64 else tensor.float()
