"""Plans stay as they are: the packs of every algorithm on real-shaped lengths, by fingerprint, in both forms.

Textbook examples and laws leave room for packs that are as many and others. Somebody who goes on with a plan, or compares two
runs, counts on the same packs; a change that is meant changes ``tests/golden/plans.json`` with it
(``python -m tests.plan.test_frozen_plans`` prints it), and says so in the changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from brimful import Plan, plan_packs
from tests.plan.frozen import assert_frozen, show

ALGORITHMS = (
    *("best_fit_decreasing", "first_fit_decreasing", "phased", "spread", "next_fit", "first_fit", "best_fit"),
    *("worst_fit", "concat_split"),
)


def _lengths(seed: int, count: int) -> Any:
    generator = np.random.default_rng(seed)
    return np.minimum(4000, 1 + generator.lognormal(5.5, 1.3, count).astype(np.int64))


def _cases() -> dict[str, Callable[[], Plan]]:
    cases: dict[str, Callable[[], Plan]] = {}
    for seed, count, capacity in ((0, 90, 4000), (1, 700, 4096), (2, 3000, 4000), (3, 3000, 30_000)):
        lengths = _lengths(seed, count)
        for algorithm in ALGORITHMS:
            options: dict[str, Any] = {"overflow": "split"} if algorithm == "concat_split" else {}
            cases[f"{count} lengths, {capacity}: {algorithm}"] = lambda a=algorithm, n=lengths, c=capacity, o=options: (
                plan_packs(n, capacity=c, algorithm=a, **o)
            )
        for more in (0, 1, 40):
            num_packs = plan_packs(lengths, capacity=capacity, algorithm="best_fit_decreasing").num_packs
            num_packs = min(num_packs + more, count)
            cases[f"{count} lengths, {capacity}: spread over {more} more"] = lambda n=lengths, c=capacity, p=num_packs: (
                plan_packs(n, capacity=c, algorithm="spread", num_packs=p)
            )
    # Least load first finds no room here, and a capacity is searched at which best fit decreasing takes so many.
    tight = np.random.default_rng(4).integers(900, 2000, 500)
    cases["500 lengths from 900 to 2000: spread"] = lambda: plan_packs(tight, capacity=4000, algorithm="spread")
    return cases


CASES = _cases()


@pytest.mark.parametrize("name", CASES)
def test_a_plan_is_what_it_was(name: str) -> None:
    assert_frozen("plans.json", name, CASES[name])


if __name__ == "__main__":
    show(CASES)
