"""Makes the golden files of plans of trees, once for each version: ``python -m tests.golden.make_trees tests/golden/trees_3``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

from brimful import LengthTable, Plan, plan_packs
from brimful.trees.plan.plan_trees import parents_of
from brimful.trees.prefixes import Prefixes
from tests.golden.make import contents_of_plan, digest

PLANS: dict[str, dict[str, Any]] = {
    "drop": {"overflow": "drop", "max_path": 1_200},
    "truncate": {"overflow": "truncate", "max_path": 1_200, "budgets": {"samples": 6, "patches": 900}},
    "seed": {"seed": 3, "epoch": 2},
    "groups": {"groups": np.argsort(np.random.default_rng(37).permutation(120)) // 2, "overflow": "drop"},
}
"""Options of ``plan_packs`` by the name of the file; the capacity is 2,000."""


def table() -> LengthTable:
    """Return 120 samples of twelve trees with trunks of up to three levels, and pictures in some trunks."""
    draw = np.random.default_rng(36)
    depths = draw.choice([64, 130, 200, 205, 500], 120)
    shared = np.where(np.arange(120) % 10, depths, 0).astype(np.int32)
    lengths = np.maximum(shared, np.append(shared[1:], 0)) + draw.integers(0, 700, 120)
    order = np.random.default_rng(37).permutation(120)
    tokens, patches = np.zeros(120, np.int32), np.zeros(120, np.int32)
    tokens[order], patches[order] = np.maximum(lengths, 1), 64
    amounts = {"patches": np.where(shared >= 130, 64, 0).astype(np.int32)}
    return LengthTable({"tokens": tokens, "patches": patches}, sharing=Prefixes(order, shared, 64, amounts))


def plan_named(name: str, lengths: LengthTable) -> Plan:
    """Return the plan with the options of this name."""
    return plan_packs(lengths, capacity=2_000, share="prefixes", **PLANS[name])


def contents(plan: Plan) -> dict[str, Any]:
    """Return what must be found in a plan of trees, wherever it is opened."""
    return {**contents_of_plan(plan), "parents": digest(parents_of(plan))}


def main(directory: str) -> None:
    Path(directory).mkdir()
    os.chdir(directory)
    table().save("lengths.arrow")
    expected = {}
    for name in PLANS:
        plan = plan_named(name, LengthTable.open("lengths.arrow"))
        plan.save(f"{name}.plan")
        expected[name] = contents(plan)
    Path("expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
