"""Planner of TRL's asynchronous GRPO, ``trl.experimental.async_grpo``."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from brimful.base.checks import whole_number
from brimful.base.optional import optional
from brimful.errors import InvalidLengthsError
from brimful.rl.step_items import StepCost
from brimful.rl.step_plan import StepPlan
from brimful.rl.step_planner import plan_step

with optional("torch", "torch", "TokenBudgetBatcher"):
    from torch.utils.data import IterableDataset

__all__ = ["TokenBudgetBatcher"]


class TokenBudgetBatcher(IterableDataset[list[Any]]):
    """Batcher of a stream of rollouts: rows of samples, one row for each process, within a budget
    of tokens.

    TRL closes all rows when one sample fits into none of them; here ``window`` samples are planned
    together, so that rows are full and have about the same cost. A sample above the budget is
    dropped with a warning and counted in ``metrics``, as in TRL; so is a sample without tokens, on
    which TRL 1.16 fails. Samples at the end of the stream that are too few for a row of each
    process, fewer than the processes, are dropped with a warning.

    Args:
        dataset: rollouts, dictionaries with ``input_ids``.
        num_processes: data-parallel ranks.
        token_budget: maximum tokens of a row.
        metrics: TRL's lists by name.
        window: samples that are planned together, rounded up to a multiple of the processes; a
            last, shorter window is planned too.
        cost: see ``plan_step``.

    Raises:
        SettingsError: a window or a number of processes below 1.

    Yields a list of ``num_processes`` rows at a time: of TRL's ``TreeRow`` if TRL has it, otherwise
        lists of samples.

    >>> rollouts = [{"input_ids": [0] * length} for length in (3, 3, 5, 6, 1, 1)]
    >>> batches = TokenBudgetBatcher(rollouts, num_processes=2, token_budget=7, metrics={}, rows_of=list)
    >>> [[sum(len(sample["input_ids"]) for sample in row) for row in rows] for rows in batches]
    [[6, 6], [3, 4]]
    """

    def __init__(
        self,
        dataset: Iterable[dict[str, Any]],
        num_processes: int,
        token_budget: int,
        metrics: dict[str, list[float]],
        *,
        window: int = 1024,
        cost: StepCost | None = None,
        rows_of: Any = None,
    ) -> None:
        self.dataset = dataset
        self.num_processes = whole_number("num_processes", num_processes, minimum=1)
        self.token_budget = token_budget
        self.metrics = metrics
        # At least as many samples as rows can always be planned: no window waits for another
        # sample.
        self.window = (
            -(-whole_number("window", window, minimum=1) // self.num_processes) * self.num_processes
        )
        self.cost = cost
        self._rows_of = rows_of or _row

    def __iter__(self) -> Iterator[list[Any]]:
        samples: list[dict[str, Any]] = []
        for sample in self.dataset:
            length = len(sample["input_ids"])
            if not 1 <= length <= self.token_budget:
                reason, name = (
                    (f"exceeds token_budget={self.token_budget}", "oversize")
                    if length
                    else ("is empty", "empty")
                )
                warnings.warn(
                    f"a rollout of {length:,} tokens {reason} and is dropped", stacklevel=2
                )
                self.metrics.setdefault(f"batch/dropped_{name}_total", []).append(1.0)
                continue
            samples.append(sample)
            if len(samples) == self.window:
                yield from self._rows(samples, self._plan(samples))
                samples = []
        num_beyond = len(samples) % self.num_processes
        try:
            step = self._plan(samples) if samples else None
        except InvalidLengthsError:
            # Too few samples is the only possible cause: all lengths are within the budget.
            warnings.warn(
                f"{num_beyond} rollouts are too few for {self.num_processes:,} rows and are "
                "dropped",
                stacklevel=2,
            )
            samples = samples[: len(samples) - num_beyond]
            step = self._plan(samples) if samples else None
        if step is not None:
            yield from self._rows(samples, step)

    def _plan(self, samples: list[dict[str, Any]]) -> StepPlan:
        lengths = np.array([len(sample["input_ids"]) for sample in samples])
        return plan_step(
            lengths, capacity=self.token_budget, dp_world_size=self.num_processes, cost=self.cost
        )

    def _rows(self, samples: list[dict[str, Any]], step: StepPlan) -> Iterator[list[Any]]:
        by_rank = [step.micro_batches(rank) for rank in range(self.num_processes)]
        for number in range(step.num_micro_batches):
            yield [
                self._rows_of([samples[sample] for sample in rows[number].tolist()])
                for rows in by_rank
            ]

    def __repr__(self) -> str:
        return (
            f"TokenBudgetBatcher({self.num_processes} rows of {self.token_budget:,} tokens, "
            f"{self.window:,} samples at a time)"
        )


def _row(samples: list[dict[str, Any]]) -> Any:
    """Make a row in the form that TRL's collator takes."""
    try:
        from trl.experimental.async_grpo.async_grpo_trainer import TreeRow
    except ImportError:
        return samples
    row = TreeRow()
    for sample in samples:
        row.add(sample)
    return row
