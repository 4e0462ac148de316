"""Plans that continue one another: stages of a mixture whose weights and capacity follow a schedule
by step.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from brimful.base.checks import whole_number
from brimful.base.ragged import ranges
from brimful.base.typing import AnyIntArray, Int64Array, IntArrayLike
from brimful.base.wording import setting
from brimful.errors import SettingsError
from brimful.lengths.table import LengthTable
from brimful.mixtures.mixture import Mixture
from brimful.mixtures.pack_mixture import as_uses
from brimful.plan.packing import LengthsLike
from brimful.plan.plan import Plan
from brimful.plan.plan_settings import PlanSettings
from brimful.plan.planner import plan_with


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
    """Cut a schedule into stages: weights are linear between points, capacities stay until the next
    point.

    ::

        weights of a   1.0 at step 0, 0.0 at step 4      steps 0 1 2 3
        shares of a                                       1.0 0.75 0.5 0.25
        stages of 2 steps                                 0.875     0.375

    Pure: no I/O.

    Args:
        weights: pairs of a step and the weight of each source at this step; steps ascend from 0.
        num_steps: number of training steps.
        steps_per_stage: steps that are planned together; a stage is shorter if the capacity
            changes.
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
        if (name == "weights" and not steps) or (
            steps and (steps[0] != 0 or sorted(set(steps)) != steps)
        ):
            raise SettingsError(f"the steps of {name} must ascend from 0 and are {steps}")
    names = list(weights[0][1])
    for step, point in weights:
        if set(point) != set(names):
            raise SettingsError(
                f"the weights of step {step} are for {', '.join(point)}, and for "
                f"{', '.join(names)} at step 0"
            )
        if not all(weight >= 0 for weight in point.values()) or not sum(point.values()) > 0:
            raise SettingsError(f"the weights of step {step} must be at least 0, and one above 0")
    all_steps = np.arange(num_steps)
    # Shares are interpolated, not weights: 1 : 1 at one point and 10 : 30 at the next are 0.5 and
    # 0.25.
    shares = {
        name: np.interp(
            all_steps,
            [step for step, _ in weights],
            [point[name] / sum(point.values()) for _, point in weights],
        )
        for name in names
    }
    changes = [step for step, _ in capacities if step < num_steps] or [0]
    stages = []
    for stage_start, end in zip(changes, [*changes[1:], num_steps], strict=True):
        capacity = dict(capacities).get(stage_start)
        for first in range(stage_start, end, steps_per_stage):
            stage = slice(first, min(first + steps_per_stage, end))
            mean = {name: float(values[stage].mean()) for name, values in shares.items()}
            stages.append(MixtureStage(first, stage.stop - first, mean, capacity))
    return stages


def plan_stages(
    lengths: LengthsLike,
    settings: PlanSettings,
    stages: Sequence[MixtureStage],
    *,
    packs_per_step: int,
    sources: Mapping[str, int] | None = None,
    uses: AnyIntArray | None = None,
) -> list[Plan]:
    """Plan one stage of steps after the other, each with its own weights and capacity.

    Each stage continues where the previous one ended: no sample repeats before the others of its
    source have been used.

    Pure: no I/O.

    Args:
        lengths: see ``plan_packs``.
        settings: for all stages, with a mixture; stages without a capacity use its capacity.
        stages: from ``mixture_stages``.
        packs_per_step: packs of one step, over all ranks.
        sources, uses: see ``plan_packs``.

    Returns:
        One plan for each stage, of ``num_steps × packs_per_step`` packs unless the sources run out.

    Raises:
        SettingsError: settings without a mixture, or with a mixture that has a target of its own.

    >>> from brimful.mixtures import Mixture, mixture_stages
    >>> stages = mixture_stages([(0, {"a": 1, "b": 0}), (4, {"a": 0, "b": 1})], num_steps=4, steps_per_stage=2)
    >>> settings = PlanSettings(capacity=4, draw=Mixture(weights={"a": 1, "b": 1}))
    >>> plans = plan_stages([2] * 40, settings, stages, packs_per_step=4, sources={"a": 20, "b": 20})
    >>> [[source["draws"] for source in plan.outcome.drawn["sources"]] for plan in plans]
    [[14, 2], [6, 10]]
    """
    mixture = settings.draw
    if not isinstance(mixture, Mixture) or mixture.has_target:
        raise SettingsError(
            f"stages need {setting('mixture')} without a target: each stage has its own"
        )
    table = lengths if isinstance(lengths, LengthTable) else LengthTable({"tokens": lengths})
    plans: list[Plan] = []
    counts = as_uses(uses, len(table))
    for index, stage in enumerate(stages):
        settings_now = replace(
            settings,
            capacity=stage.capacity or settings.capacity,
            draw=replace(
                mixture, weights=stage.weights, num_packs=stage.num_steps * packs_per_step
            ),
            epoch=settings.epoch * len(stages) + index,
        )
        plan = plan_with(table, settings_now, sources=sources, uses=counts)
        counts = consumed_samples(plan, np.arange(plan.num_packs), counts)
        plans.append(plan)
    return plans


def consumed_samples(
    plan: Plan, packs: IntArrayLike, before: AnyIntArray | None = None
) -> Int64Array:
    """Count how often each sample was consumed, to continue with another mixture:
    ``plan_packs(…, uses=…)``.

    A sample of several segments counts if any of them was consumed.

    Pure: no I/O.

    Args:
        plan: the plan that was trained on.
        packs: the packs that were served, such as ``schedule[:steps]``; -1, an empty place, is
            skipped.
        before: counts before this plan; None if it was the first.

    Returns:
        ``int64[num_samples]``.

    >>> from brimful.plan import plan_packs
    >>> plan = plan_packs([3, 3, 5, 6, 1, 1], capacity=7, seed=None)
    >>> consumed_samples(plan, [2]).tolist()
    [1, 1, 0, 0, 0, 1]
    """
    pack_ids = np.asarray(packs, dtype=np.int64).reshape(-1)
    pack_ids = pack_ids[pack_ids >= 0]
    rows = ranges(plan.offsets[:-1][pack_ids], np.diff(plan.offsets)[pack_ids])
    num_samples = plan.ledger.samples_in
    total = as_uses(before, num_samples)
    sample_ids, starts = plan.sample_ids[rows], plan.starts[rows]
    order = np.lexsort((starts, sample_ids))
    ids, sorted_starts = sample_ids[order], starts[order]
    edges = np.flatnonzero(np.diff(ids, prepend=-1) | np.diff(sorted_starts, prepend=-1))
    counts = np.zeros(num_samples, dtype=np.int64)
    # If a sample has several segments, its count is the count of its most frequent segment.
    np.maximum.at(counts, ids[edges], np.diff(np.r_[edges, len(ids)]))
    return total + counts
