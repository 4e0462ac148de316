"""The training run that a report is for: the shape of its steps and the costs of its model."""

import math
from dataclasses import dataclass, field
from typing import Any

from brimful.errors import SettingsError
from brimful.messages import setting
from brimful.plan.schedule import CostModel
from brimful.report.analysis.model_presets import DEFAULT_MODEL, cost_model_named

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

    dp_world_size: int = 1
    micro_batch_size: int = 1
    gradient_accumulation_steps: int = 1
    packs_per_micro_batch: int | None = None
    learning_rate: float | None = None
    warmup_steps: int | None = None
    cost_model: CostModel = field(default_factory=lambda: cost_model_named(DEFAULT_MODEL))
    model: str = DEFAULT_MODEL

    def __post_init__(self) -> None:
        # Counts first: a rate says nothing about an impossible run.
        for name, minimum in _MINIMA.items():
            value = getattr(self, name)
            if value is not None and value < minimum:
                raise SettingsError(f"{setting(name)} must be at least {minimum} and is {value}")
        if self.learning_rate is not None and not 0 < self.learning_rate < math.inf:
            raise SettingsError(f"{setting('learning_rate')} must be a number above 0 and is {self.learning_rate}")

    @property
    def packs_per_forward(self) -> int:
        """Packs of one forward on one rank."""
        return self.micro_batch_size if self.packs_per_micro_batch is None else self.packs_per_micro_batch

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
            "crossover_length": self.cost_model.crossover_length if self.cost_model.quadratic else None,
            "cost_unit": self.cost_model.unit,
        }
