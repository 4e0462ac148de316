"""The training run that a report is for: the shape of its steps and the costs of its model."""

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from brimful.base.arguments import option
from brimful.base.typing import AnyPath
from brimful.base.wording import setting
from brimful.errors import SettingsError, SourceNotFoundError
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
            f"{setting('model_type', name)} is unknown: use one of {', '.join(MODELS)}, or "
            f"{setting('model_config')}"
        )
    return CostModel.of_model(config)


def cost_model_from_config(path: AnyPath) -> CostModel:
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
        if not isinstance(config, dict):
            raise ValueError("it holds no JSON object")
        return CostModel.of_model(config)
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{setting('model_config', name)}: no such file") from error
    except ValueError as error:
        message = f"{setting('model_config', name)} is not the config.json of a model: {error}"
        raise SettingsError(message) from error


_MINIMA = {
    "dp_world_size": 1,
    "micro_batch_size": 1,
    "packs_per_micro_batch": 1,
    "gradient_accumulation_steps": 1,
    "warmup_steps": 0,
}
"""Smallest value of each count."""


@dataclass(frozen=True)
class TrainingRun:
    """Settings of a run, without and with packing.

    Attributes:
        dp_world_size, micro_batch_size, gradient_accumulation_steps: of the run without packing.
        packs_per_micro_batch: with packing; ``micro_batch_size`` if None.
        learning_rate, warmup_steps: of the run without packing; None if unknown.
        cost_model: of the model.
        model: name of the model.

    Raises:
        SettingsError: a count that is too small, or a learning rate that is not above 0.

    >>> TrainingRun(dp_world_size=0)
    Traceback (most recent call last):
        ...
    brimful.errors.SettingsError: dp_world_size must be at least 1 and is 0
    """

    dp_world_size: int = option(
        1, "Data-parallel ranks.", "RANKS", "--world-size", "--dp-world-size"
    )
    micro_batch_size: int = option(
        1,
        "Samples per forward pass without packing.",
        "N",
        *("--micro-batch-size", "--per-device-train-batch-size"),
    )
    gradient_accumulation_steps: int = option(1, "Forward passes per step on one rank.", "N")
    packs_per_micro_batch: int | None = option(
        None, "Packs per forward pass with packing (default: --micro-batch-size).", "N"
    )
    learning_rate: float | None = option(None, "Learning rate without packing.", "LR")
    warmup_steps: int | None = option(None, "Warmup steps without packing.", "N")
    cost_model: CostModel = field(default_factory=lambda: cost_model_named(DEFAULT_MODEL))
    model: str = DEFAULT_MODEL

    def __post_init__(self) -> None:
        # Counts first: a rate says nothing about an impossible run.
        for name, minimum in _MINIMA.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise SettingsError(f"{setting(name)} must be at least {minimum} and is {value}")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise SettingsError(
                f"{setting('learning_rate')} must be a number above 0 and is {self.learning_rate}"
            )

    @property
    def packs_per_forward(self) -> int:
        """Packs of one forward on one rank."""
        return (
            self.micro_batch_size
            if self.packs_per_micro_batch is None
            else self.packs_per_micro_batch
        )

    @property
    def packs_per_step(self) -> int:
        """Packs of one step on all ranks, if no setting is changed."""
        return self.dp_world_size * self.packs_per_forward * self.gradient_accumulation_steps

    @property
    def samples_per_step(self) -> int:
        """Samples of one step on all ranks, without packing."""
        return self.dp_world_size * self.micro_batch_size * self.gradient_accumulation_steps

    def as_dict(self) -> dict[str, Any]:
        """Return a dictionary for JSON, with two numbers of the cost model."""
        return {
            **{name: value for name, value in vars(self).items() if name != "cost_model"},
            "crossover_length": self.cost_model.crossover_length
            if self.cost_model.quadratic
            else None,
            "cost_unit": self.cost_model.unit,
        }
