"""Trees: packs and positions over the bound, and seconds, on drawn workloads of five kinds.

There is no peer to take in turn: none plans trees before their step. What is held against is the bound, and the packs
of the same samples one by one. Lengths are lognormal; numbers in a name are medians. Seconds are processor time.

    python benchmarks/bench_trees.py
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
from compare import describe_machine

from brimful import LengthTable, plan_packs
from brimful.base.compiling import compiled_forms
from brimful.plan import PlanSettings
from brimful.plan.items import prepare_items
from brimful.trees.plan.bound import bound_of_trees
from brimful.trees.plan.pack_trees import forest_of
from brimful.trees.prefixes import Prefixes

CAPACITY = 32_768


class Grown:
    """Samples in dictionary order: lengths, and tokens shared with the sample before."""

    def __init__(self, seed: int) -> None:
        self.draw = np.random.default_rng(seed)
        self.lengths: list[int] = []
        self.shared: list[int] = []

    def size(self, median: float, sigma: float = 0.75, most: int = 16_384) -> int:
        return int(np.clip(self.draw.lognormal(np.log(median), sigma), 1, most))

    def leaf(self, length: int, shared: int) -> None:
        self.lengths.append(length)
        self.shared.append(shared)

    def table(self) -> LengthTable:
        """The table, with samples in another order than the dictionary's."""
        order = self.draw.permutation(len(self.lengths))
        tokens = np.zeros(len(order), dtype=np.int32)
        tokens[order] = self.lengths
        return LengthTable(
            {"tokens": tokens}, sharing=Prefixes(order, np.array(self.shared, dtype=np.int32))
        )


def answers(grown: Grown, prompts: int, answers: int, prompt: int, answer: int) -> None:
    """GRPO: several answers to each prompt."""
    for _ in range(prompts):
        depth = grown.size(prompt)
        for number in range(answers):
            grown.leaf(depth + grown.size(answer), depth if number else 0)


def agents(grown: Grown, tasks: int, rollouts: int) -> None:
    """Rollouts of a task: each turn ends a sample with its thoughts, which later turns do not see."""
    for _ in range(tasks):
        prompt = grown.size(2_000)
        for rollout in range(rollouts):
            depth = prompt
            shared = prompt if rollout else 0
            for _ in range(int(grown.draw.integers(4, 13))):
                grown.leaf(depth + grown.size(500), shared)
                shared = depth
                depth += grown.size(600)


def dialogues(grown: Grown, number: int) -> None:
    """Short turns after one system prompt: each answer is a sample, whose thoughts later turns do not see."""
    system = 1_500
    for dialogue in range(number):
        depth = system
        shared = system if dialogue else 0
        for _ in range(int(grown.draw.integers(3, 16))):
            depth += grown.size(35, 0.4)
            grown.leaf(depth + grown.size(25, 0.4), shared)
            shared = depth


def mixed(grown: Grown, trees: int, pairs: int) -> None:
    """Binary trees of 64 leaves, whose nodes have some 1,000 tokens, and pairs of preferences."""
    for _ in range(trees):
        depths = [0]
        for leaf in range(64):
            level = 0 if leaf == 0 else 6 - (leaf & -leaf).bit_length() + 1
            depths = depths[: level + 1] if leaf else [grown.size(1_000)]
            shared = depths[-1] if leaf else 0
            while len(depths) < 7:
                depths.append(depths[-1] + grown.size(1_000))
            grown.leaf(depths[-1], shared)
    for _ in range(pairs):
        prompt = grown.size(300)
        grown.leaf(prompt + grown.size(400), 0)
        grown.leaf(prompt + grown.size(400), prompt)


WORKLOADS: dict[str, Callable[[Grown], None]] = {
    "64 prompts of 4,000, 16 answers of 1,500": lambda grown: answers(grown, 64, 16, 4_000, 1_500),
    "128 prompts of 500, 8 answers of 2,500": lambda grown: answers(grown, 128, 8, 500, 2_500),
    "24 tasks of 8 agents, 4 to 12 turns": lambda grown: agents(grown, 24, 8),
    "3,000 dialogues after one system prompt": lambda grown: dialogues(grown, 3_000),
    "12 binary trees and 2,000 pairs": lambda grown: mixed(grown, 12, 2_000),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--quick", action="store_true", help="one seed: does it run at all?")
    parser.add_argument("--numpy", action="store_true", help="as without numba")
    options = parser.parse_args()
    with compiled_forms(False) if options.numpy else nullcontext():
        print("\n".join(describe_machine()), end="\n\n")
        print(
            "| workload | seed | samples | one by one | bound | packs | over | positions over | seconds |"
        )
        print("|---|---:|---:|---:|---:|---:|---:|---:|---:|")
        for name, grow in WORKLOADS.items():
            for seed in range(1 if options.quick else 3):
                measure(name, grow, seed)


def measure(name: str, grow: Callable[[Grown], None], seed: int) -> None:
    """Print the row of a workload."""
    grown = Grown(seed)
    grow(grown)
    table = grown.table()
    alone = plan_packs(table, capacity=CAPACITY).num_packs
    start = time.process_time()
    plan = plan_packs(table, capacity=CAPACITY, share="prefixes")
    seconds = time.process_time() - start
    positions = bound_of_positions(table)
    print(
        f"| {name} | {seed} | {len(table):,} | {alone:,} | {plan.bound:,} | {plan.num_packs:,} "
        f"| {plan.num_packs / plan.bound - 1:.2%} | {plan.ledger.tokens_packed / positions - 1:.2%} | {seconds:.2f} |",
        flush=True,
    )


def bound_of_positions(table: LengthTable) -> int:
    """Return the bound of the tokens in packs."""
    settings = PlanSettings(capacity=CAPACITY, share="prefixes")
    items = prepare_items(table, settings)
    forest, _ = forest_of(table, items, settings)
    return bound_of_trees(forest, items.capacities).tokens


if __name__ == "__main__":
    main()
