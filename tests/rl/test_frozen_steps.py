"""Steps stay as they are: an accidental change of a heuristic changes one of these plans.

Other tests say that a plan is valid and balanced, which a worse heuristic is, too. Every rank plans for itself, and a
training goes on with the plans that it began with: so a change that is meant changes ``tests/golden/steps.json`` with it
(``python -m tests.rl.test_frozen_steps`` prints it), and says so in the changes.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from brimful import CostModel, LengthTable
from brimful.errors import InvalidLengthsError, OversizedSampleError
from brimful.rl import plan_context_parallel, plan_step
from brimful.rl.fill_bins import scattered
from brimful.trees.prefixes import Prefixes
from tests.plan.forms import use
from tests.plan.frozen import assert_frozen, show
from tests.rl.laws import random_step


def _quadratic(lengths: Any) -> Any:
    return np.asarray(lengths, dtype=np.float64) ** 2 / 1000 + np.asarray(lengths)


def _lengths(seed: int, count: int, longest: int = 4000) -> Any:
    generator = np.random.default_rng(seed)
    return np.minimum(longest, 1 + generator.lognormal(6, 1.2, count).astype(np.int64))


def _cases() -> dict[str, Any]:
    """Functions by name, each of which makes a plan."""
    cases: dict[str, Any] = {}
    for seed, count, ranks in ((0, 7, 2), (1, 40, 4), (2, 128, 4), (3, 256, 8), (4, 600, 16)):
        lengths = _lengths(seed, count)
        groups = np.arange(count) // 8
        for name, options in {
            "plain": {},
            "quadratic": {"cost": _quadratic(lengths)},
            "step": {"barrier": "step"},
            "step, quadratic": {"barrier": "step", "cost": _quadratic(lengths)},
            "groups": {"groups": groups},
            "groups, step, quadratic": {"groups": groups, "barrier": "step", "cost": _quadratic(lengths)},
            "groups in a micro-batch": {
                "groups": np.arange(count) // 2,
                "groups_share": "micro_batch",
                "capacity": 8192,
            },
            "multiples": {"multiple_of": 3, "min_micro_batches": 2},
            "budgets": {"budgets": {"samples": 6, "squares": 20_000_000}},
            "tight": {"capacity": int(lengths.max())},
        }.items():
            if "groups" in name and count // 8 < ranks:
                continue
            settings = {"capacity": 5000, "dp_world_size": ranks, **options}
            cases[f"{count} samples, {ranks} ranks: {name}"] = lambda lengths=lengths, settings=settings: plan_step(
                lengths, **settings
            )
        for slack in (0.0, 0.02, 0.3):
            for cost in (None, _quadratic(lengths)):
                cases[f"{count} samples, {ranks} ranks: context {slack} {'plain' if cost is None else 'quadratic'}"] = (
                    lambda lengths=lengths, ranks=ranks, slack=slack, cost=cost: plan_context_parallel(
                        lengths, max_tokens_per_rank=1500, world_size=ranks, slack=slack, cost=cost
                    )
                )
    return cases


CASES = _cases()


@pytest.mark.parametrize("name", CASES)
def test_a_step_is_the_plan_that_it_was(name: str) -> None:
    """Both forms give it, too."""
    assert_frozen("steps.json", name, CASES[name])


def _costs(generator: Any, lengths: Any) -> Any:
    """One of the three forms of a cost: by tokens, of a model, and of each sample."""
    own = lengths * (1 + generator.random(len(lengths)))
    return (None, CostModel(linear=500, quadratic=1, tile=1), own)[int(generator.integers(3))]


def _random_step(seed: int) -> Any:
    generator = np.random.default_rng([19, seed])
    lengths, ranks, settings = random_step(generator)
    # Short steps: most corners are those of few samples.
    lengths = lengths[:150]
    if "groups" in settings:
        settings["groups"] = settings["groups"][:150]
    settings |= {"cost": _costs(generator, lengths), "min_micro_batches": int(generator.integers(1, 4))}
    return plan_step(lengths, dp_world_size=ranks, **settings)


def _random_context(seed: int) -> Any:
    generator = np.random.default_rng([20, seed])
    capacity, ranks = int(generator.integers(8, 600)), int(generator.integers(1, generator.choice([14, 40])))
    median, spread = capacity * generator.uniform(0.05, 1.5), generator.uniform(0, 1.2)
    lengths: Any = generator.lognormal(np.log(median), spread, int(generator.integers(1, 60)))
    lengths = np.clip(lengths, 1, capacity * ranks).astype(np.int64)
    # Some fill one rank, or two, four or eight of them, to the last token or but for one.
    is_exact = generator.random(len(lengths)) < generator.choice([0, 0.5])
    exact = capacity * 2 ** generator.integers(0, 4, len(lengths)) - generator.integers(0, 2, len(lengths))
    lengths = np.where(is_exact & (exact < capacity * ranks), exact, lengths)
    slack = float(generator.choice([0, 0.02, 0.3]))
    return plan_context_parallel(
        lengths, max_tokens_per_rank=capacity, world_size=ranks, cost=_costs(generator, lengths), slack=slack
    )


def _random_trees(seed: int) -> Any:
    generator = np.random.default_rng([21, seed])
    lengths, ranks, settings = random_step(generator)
    lengths = lengths[:60]
    limits = np.minimum(lengths, np.roll(lengths, 1))
    # Trunks of any length, at any depth; and samples that share nothing, or all that there is.
    shared = (limits * generator.random(len(lengths))).astype(np.int32)
    shared = np.where(generator.random(len(lengths)) < generator.random(), shared, 0)
    shared = np.where(generator.random(len(lengths)) < 0.1, limits, shared).astype(np.int32)
    shared[0] = 0
    order = generator.permutation(len(lengths))
    patches = generator.integers(0, 9, len(lengths)).astype(np.int32)
    amounts = {"patches": np.minimum(patches, np.roll(patches, 1)) * (shared > 0)} if generator.random() < 0.5 else {}
    prefixes = Prefixes(order, shared, 1, amounts)
    columns = {"tokens": lengths.astype(np.int32), "patches": patches}
    in_order = {name: scattered(values, order) for name, values in columns.items()}
    cost = (None, CostModel(linear=500, quadratic=1, tile=1), CostModel(linear=50, quadratic=1, encoder_linear=900))
    options: dict[str, Any] = {name: settings[name] for name in ("capacity", "multiple_of", "barrier")}
    options["budgets"] = (None, {"samples": 4}, {"patches": 20}, {"squares": options["capacity"] ** 2})[seed % 4]
    return plan_step(
        LengthTable(in_order),
        dp_world_size=ranks,
        cost=cost[int(generator.integers(3))],
        min_micro_batches=int(generator.integers(1, 4)),
        prefixes=prefixes,
        **options,
    )


@pytest.mark.parametrize("form", ["compiled", "plain"])
@pytest.mark.parametrize(
    ("make", "count", "expected"),
    [
        (_random_step, 800, "8be64e278d083b44"),
        (_random_context, 800, "20507d9da0f6491d"),
        (_random_trees, 120, "56b73d92feb8feb4"),
    ],
    ids=["step", "context", "trees"],
)
def test_random_steps_are_what_they_were(
    make: Callable[[int], Any], count: int, expected: str, form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tie, a last free rank, a sample that fits exactly: corners that no case above has. Of a refusal its numbers count."""
    use(form, monkeypatch)
    digest = hashlib.sha256()
    for seed in range(count):
        try:
            plan = make(seed)
            outcome = [plan.fingerprint, *plan.tokens.ravel().tolist()]
        except (InvalidLengthsError, OversizedSampleError) as error:
            outcome = re.findall(r"\d+", str(error))
        digest.update(repr(outcome).encode())
    assert digest.hexdigest()[:16] == expected


if __name__ == "__main__":
    show(CASES)
