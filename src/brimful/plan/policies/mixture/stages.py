"""Stages of a mixture whose weights and capacity follow a schedule by step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from brimful.checks import whole_number
from brimful.errors import SettingsError


@dataclass(frozen=True)
class MixtureStage:
    """Consecutive steps with one mix and one capacity.

    Attributes:
        first_step: first step of the stage.
        num_steps: number of steps of the stage.
        weights: share of each source.
        capacity: tokens of a pack; None for the capacity of the settings.
    """

    first_step: int
    num_steps: int
    weights: Mapping[str, float]
    capacity: int | None = None


def mixture_stages(
    weights: Sequence[tuple[int, Mapping[str, float]]],
    *,
    num_steps: int,
    steps_per_stage: int,
    capacities: Sequence[tuple[int, int]] = (),
) -> list[MixtureStage]:
    """Cut a schedule into stages: weights are linear between points, capacities stay until the next point.

    ::

        weights of a   1.0 at step 0, 0.0 at step 4      steps 0 1 2 3
        shares of a                                       1.0 0.75 0.5 0.25
        stages of 2 steps                                 0.875     0.375

    Pure: no I/O.

    Args:
        weights: pairs of a step and the weight of each source at this step; steps ascend from 0.
        num_steps: number of training steps.
        steps_per_stage: steps that are planned together; a stage is shorter if the capacity changes.
        capacities: pairs of a step and the tokens of a pack from there on.

    Raises:
        SettingsError: steps that do not ascend from 0, or points of different sources.

    >>> [stage.weights["a"] for stage in mixture_stages([(0, {"a": 1, "b": 0}), (4, {"a": 0, "b": 1})], num_steps=4,
    ...     steps_per_stage=2)]
    [0.875, 0.375]
    """
    whole_number("num_steps", num_steps, minimum=1)
    whole_number("steps_per_stage", steps_per_stage, minimum=1)
    for name, points in (("weights", weights), ("capacities", capacities)):
        steps = [step for step, _ in points]
        if (name == "weights" and not steps) or (steps and (steps[0] != 0 or sorted(set(steps)) != steps)):
            raise SettingsError(f"the steps of {name} must ascend from 0 and are {steps}")
    names = list(weights[0][1])
    for step, point in weights:
        if set(point) != set(names):
            raise SettingsError(
                f"the weights of step {step} are for {', '.join(point)}, and for {', '.join(names)} at step 0"
            )
        if not all(weight >= 0 for weight in point.values()) or not sum(point.values()) > 0:
            raise SettingsError(f"the weights of step {step} must be at least 0, and one above 0")
    all_steps = np.arange(num_steps)
    # Shares are interpolated, not weights: 1 : 1 at one point and 10 : 30 at the next are 0.5 and 0.25.
    shares = {
        name: np.interp(
            all_steps, [step for step, _ in weights], [point[name] / sum(point.values()) for _, point in weights]
        )
        for name in names
    }
    changes = [step for step, _ in capacities if step < num_steps] or [0]
    stages = []
    for begin, end in zip(changes, [*changes[1:], num_steps], strict=True):
        capacity = dict(capacities).get(begin)
        for first in range(begin, end, steps_per_stage):
            part = slice(first, min(first + steps_per_stage, end))
            mean = {name: float(values[part].mean()) for name, values in shares.items()}
            stages.append(MixtureStage(first, part.stop - first, mean, capacity))
    return stages
