"""Cost models of well-known model sizes, for reports that are made before the model exists."""

import json
import os
from collections.abc import Mapping
from types import MappingProxyType

from brimful.errors import BrimfulError, SettingsError, SourceNotFoundError
from brimful.messages import setting
from brimful.plan.schedule import CostModel

_CONFIG_KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "head_dim",
    "intermediate_size",
    "vocab_size",
)

_SIZES = {
    "qwen3-0.6b": (1024, 28, 16, 8, 128, 3072, 151936),
    "qwen3-1.7b": (2048, 28, 16, 8, 128, 6144, 151936),
    "qwen3-4b": (2560, 36, 32, 8, 128, 9728, 151936),
    "qwen2.5-7b": (3584, 28, 28, 4, 128, 18944, 152064),
    "qwen3-8b": (4096, 36, 32, 8, 128, 12288, 151936),
    "llama-3-8b": (4096, 32, 32, 8, 128, 14336, 128256),
    "qwen3-32b": (5120, 64, 64, 8, 128, 25600, 151936),
    "llama-3-70b": (8192, 80, 64, 8, 128, 28672, 128256),
}
"""Values of ``_CONFIG_KEYS``."""

MODELS: Mapping[str, Mapping[str, int]] = MappingProxyType(
    {name: dict(zip(_CONFIG_KEYS, sizes, strict=True)) for name, sizes in _SIZES.items()}
)
"""Keys of ``config.json`` that a cost model needs."""

DEFAULT_MODEL = "qwen3-8b"
"""Model of a report that names none."""


def cost_model_named(name: str) -> CostModel:
    """Return the cost model of a size in ``MODELS``.

    Raises:
        SettingsError: no such name.

    >>> round(cost_model_named("qwen3-0.6b").crossover_length)
    10393
    """
    config = MODELS.get(name.lower())
    if config is None:
        raise SettingsError(
            f"{setting('model_type', name)} is unknown: use one of {', '.join(MODELS)}, or {setting('model_config')}"
        )
    return CostModel.of_model(config)


def cost_model_from_config(path: str | os.PathLike[str]) -> CostModel:
    """Return the cost model of a ``config.json``, or of the model directory it lies in.

    Raises:
        SourceNotFoundError: no such file.
        SettingsError: not a JSON object, or one that ``CostModel.of_model`` cannot use.
    """
    name = os.fspath(path)
    # Saved models have their config next to their weights.
    if os.path.isdir(name):
        name = os.path.join(name, "config.json")
    try:
        with open(name, encoding="utf-8") as file:
            config = json.load(file)
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{setting('model_config', name)}: no such file") from error
    except ValueError as error:
        raise SettingsError(f"{setting('model_config', name)} is not JSON: {error}") from error
    if not isinstance(config, dict):
        raise SettingsError(f"{setting('model_config', name)} holds no JSON object: give the config.json of a model")
    try:
        return CostModel.of_model(config)
    except BrimfulError as error:
        raise SettingsError(f"{setting('model_config', name)}: {error.message}") from error
