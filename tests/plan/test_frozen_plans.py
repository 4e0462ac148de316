"""Plans stay as they are: the packs of every algorithm on real-shaped lengths, by fingerprint, in both forms.

Textbook examples and laws leave room for packs that are as many and others. A user who goes on with a plan, or compares two
runs, counts on the same packs; a change that is meant changes ``tests/golden/plans.json`` with it
(``python -m tests.plan.test_frozen_plans`` prints it), and says so in the changes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from brimful import CostModel, LengthTable, Plan, plan_packs
from brimful.base.ragged import offsets_of
from brimful.base.tables import Ragged
from brimful.lengths.targets import Targets, runs_of_masks
from brimful.plan import Alignment
from tests.plan.frozen import Chance, assert_frozen, digest_of, show

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


def _random_table(chance: Chance, lengths: Any) -> LengthTable:
    """Samples with targets and patches, some of which could not be read; or rows of two samples."""
    masks = [chance.generator.random(length) < chance.of(0.2, 0.6) for length in lengths.tolist()]
    targets = Targets.of_runs(runs_of_masks(Ragged(np.concatenate(masks), offsets_of(lengths))))
    patches = 4 * chance.numbers(0, 5, len(lengths))
    columns = {"tokens": np.where(lengths, lengths, -1).astype(np.int32), "loss_tokens": targets.counts}
    columns |= {"patches": patches, "patch_blocks": patches // 4}
    provenance = chance.of({}, {}, {}, {"group_size": 2} if len(lengths) % 2 == 0 else {})
    return LengthTable(columns, targets=chance.of(None, targets), provenance=provenance)


def _random_plan(chance: Chance) -> Any:
    capacity, count = chance.number(4, 60), chance.number(1, 50)
    table = _random_table(chance, chance.numbers(chance.of(0, 1, 1), capacity * chance.of(1, 1, 2) + 1, count))
    options: dict[str, Any] = {
        "algorithm": chance.of(*ALGORITHMS),
        "overflow": chance.of("drop", "truncate", "truncate_left", "split"),
        "no_target": chance.of("keep", "drop"),
        "seed": chance.of(None, 0, 3),
        "epoch": chance.number(3),
    }
    further = {
        "alignment": chance.of(2, 4, Alignment(segment=2, total=8), Alignment(total=3)),
        "min_fill": chance.of(0.5, 0.8, 0.95),
        "budgets": chance.of({"samples": 3}, {"squares": capacity**2 // 2}, {"patches": 20}, {"loss_tokens": 9}),
        "max_path": chance.number(1, capacity + 1),
        "num_packs": chance.number(1, count + 1),
        "groups": chance.numbers(-1, count // 2 + 1, count),
        "overflow": "error",
        "no_target": "error",
    }
    for name in ("alignment", "min_fill", chance.of(*further)):
        if chance.of(True, False, False):
            options[name] = further[name]
    if {"budgets", "num_packs"} & set(options):
        options["algorithm"] = "auto" if "budgets" in options else "spread"
    if "groups" in options:
        options["overflow"] = chance.of("drop", "error")
    plan = plan_packs(table, capacity=capacity, **options)
    model = CostModel(linear=3, quadratic=0.5, encoder_linear=2, encoder_quadratic=0.25, tile=chance.of(1, 4))
    arrays = (plan.dropped_ids, plan.truncated.sample_ids, plan.truncated.lengths, plan.sample_lengths)
    return [
        *(plan.fingerprint, plan.bound, plan.ledger.as_dict(), plan.record, plan.padding, round(plan.fill_ratio, 9)),
        *(array.tolist() for array in (*arrays, plan.costs(model, table), plan.samples_of_packs)),
    ]


def test_random_plans_are_what_they_were(form: str) -> None:
    """An item that just fits, a tie, two settings that meet: packs, account and record of small plans."""
    assert digest_of(_random_plan, 600) == "5f9ab46b557bbd56"


if __name__ == "__main__":
    show(CASES)
