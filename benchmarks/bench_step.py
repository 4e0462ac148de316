"""Plans of one step beside the planning functions of RL trainers, and of Megatron-Core for context parallelism.

Lengths as rollouts have them: lognormal, median 2,500, σ 1, 64 … 32,768; budget 32,768; cost 24576·l + l², which verl assumes. A
peer's own functions run as they are, in the order in which its trainer calls them, without communication. Install peers
beside the environment (``pip install --no-deps --target DIR verl openrlhf skyrl megatron-core``, then DIR in PYTHONPATH): the
files of those whose other requirements are missing are read, and their functions taken out of them.
"""

from __future__ import annotations

import ast
import copy
import enum
import heapq
import importlib.util
import sys
import typing
from abc import ABC, abstractmethod
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import numpy.typing as npt

sys.path.insert(0, str(Path(__file__).resolve().parent))

from compare import Row, in_turn, main_of

from brimful import CostModel, plan_packs
from brimful.base.compiling import compiled_forms
from brimful.rl import find_step_prefixes, plan_context_parallel, plan_step, warm_up
from brimful.rl.step_items import prepare_step_items
from brimful.rl.step_trees import NO_LIMIT, StepForest
from brimful.trees.plan.bound import bound_of_trees

CAPACITY = 32_768
STEPS = ((1024, 8), (1024, 64), (4096, 64), (16384, 64))
LONG_STEPS = ((1024, 64, 131_072), (4096, 128, 262_144))
MAX_TOKENS_PER_RANK = 16_384
COST = CostModel(linear=24576, quadratic=1, tile=1)
SQUARES = CostModel(linear=0, quadratic=1, tile=1)

AIMS_MS = {"compiled": (0.3, 0.3, 1.5, 5.0), "NumPy": (3.0, 3.0, 12.0, 50.0)}
"""Milliseconds of a step at most, on one core."""

AIMS_WAITING = {(1024, 8): 1.036, (4096, 64): 1.062, (16384, 64): 1.024}
"""Σ over micro-steps of the slowest rank ÷ ideal at most."""

Lengths = npt.NDArray[np.int64]
Step = list[list[list[int]]]
"""Positions by rank and micro-batch."""


def lengths_of(samples: int, seed: int = 0) -> Lengths:
    return (
        np.random.default_rng(seed)
        .lognormal(np.log(2500), 1, samples)
        .clip(64, CAPACITY)
        .astype(np.int64)
    )


def waiting(step: Step, lengths: Lengths, *, once: bool = False) -> tuple[float, int, int]:
    """Time ÷ ideal, micro-batches above the budget, and micro-batches of a rank."""
    costs = 24576 * lengths + lengths**2
    number = max(len(rows) for rows in step)
    table = np.zeros((len(step), number))
    over = 0
    for rank, rows in enumerate(step):
        for place, row in enumerate(rows):
            table[rank, place] = costs[row].sum()
            over += int(lengths[row].sum()) > CAPACITY
    slowest = table.sum(axis=1).max() if once else table.max(axis=0).sum()
    return float(slowest / (costs.sum() / len(step))), over, number


def _definitions(package: str, path: str, names: list[str]) -> SimpleNamespace:
    spec = importlib.util.find_spec(package)
    places = (
        [Path(place) / path for place in (spec.submodule_search_locations or [])] if spec else []
    )
    file = next((place for place in places if place.exists()), None)
    if file is None:
        raise ImportError(f"{package} is not installed, or has no {path}")
    tree = ast.parse(file.read_text())
    tree.body = [node for node in tree.body if getattr(node, "name", None) in names]
    namespace: dict[str, Any] = {"copy": copy, "enum": enum, "heapq": heapq, "__name__": package}
    namespace |= {"ABC": ABC, "abstractmethod": abstractmethod}
    namespace |= {
        name: getattr(typing, name) for name in ("Any", "List", "Optional", "Tuple", "Callable")
    }
    exec(compile(tree, str(file), "exec"), namespace)
    return SimpleNamespace(**{name: namespace[name] for name in names})


def _verl() -> Callable[[Lengths, int], Step]:
    """Ranks by workload with equal counts, then parts of each rank, one more until all are within the budget."""
    names = ["karmarkar_karp", "get_seqlen_balanced_partitions"]
    divide = _definitions("verl", "utils/seqlen_balancing.py", names).get_seqlen_balanced_partitions

    def plan(lengths: Lengths, ranks: int) -> Step:
        work = 24576 * lengths + lengths**2
        by_rank = divide(work.tolist(), ranks, True)
        number = max(-(-int(lengths[rows].sum()) // CAPACITY) for rows in by_rank)
        while True:
            step = [
                [[rows[i] for i in part] for part in divide(work[rows].tolist(), number, False)]
                for rows in by_rank
            ]
            if all(int(lengths[part].sum()) <= CAPACITY for parts in step for part in parts):
                break
            number += 1
        for parts in step:
            parts.sort(key=lambda part: -int(work[part].sum()))
        return step

    return plan


def _openrlhf() -> Callable[[Lengths, int], Step]:
    """Samples in order to ranks, the most micro-batches of any rank by first fit, tokens divided evenly."""
    names = ["karmarkar_karp", "get_seqlen_balanced_partitions", "get_minimum_num_micro_batch_size"]
    theirs = _definitions("openrlhf", "utils/seqlen_balancing.py", names)

    def plan(lengths: Lengths, ranks: int) -> Step:
        by_rank = np.arange(len(lengths)).reshape(ranks, -1)
        count = theirs.get_minimum_num_micro_batch_size
        number = max(count(lengths[rows].tolist(), CAPACITY, 1, 1) for rows in by_rank)
        divide = theirs.get_seqlen_balanced_partitions
        return [
            [rows[part].tolist() for part in divide(lengths[rows].tolist(), number, False)]
            for rows in by_rank
        ]

    return plan


def _skyrl(kind: str) -> Callable[[], Callable[[Lengths, int], Step]]:
    def make() -> Callable[[Lengths, int], Step]:
        names = ["PackingStrategy", "SeqPacker", "FirstFitDecreasing", "Balanced"]
        theirs = _definitions("skyrl", "train/dataset/bin_packing.py", names)

        def plan(lengths: Lengths, ranks: int) -> Step:
            bins = getattr(theirs, kind)(CAPACITY, ranks, ranks).pack(lengths.tolist())
            return [bins[rank::ranks] for rank in range(ranks)]

        return plan

    return make


PEERS: tuple[tuple[str, Callable[[], Callable[[Lengths, int], Step]], int], ...] = (
    ("verl, within the budget", _verl, 4096),
    ("OpenRLHF", _openrlhf, 16384),
    ("SkyRL balanced", _skyrl("Balanced"), 16384),
    ("SkyRL first-fit-decreasing", _skyrl("FirstFitDecreasing"), 16384),
)
"""Name, function and most samples: it takes minutes for more."""

NOT_MEASURED = "slime, prime-rl, NeMo RL, torchtitan: no such package in the registry"


def ours_of(lengths: Lengths, ranks: int, barrier: str = "micro_batch") -> Step:
    step = plan_step(lengths, capacity=CAPACITY, dp_world_size=ranks, cost=COST, barrier=barrier)
    return [[rows.tolist() for rows in step.micro_batches(rank)] for rank in range(ranks)]


def _steps(quick: bool) -> list[Row]:
    peers = {}
    for name, make, most in PEERS:
        try:
            peers[name] = (make(), most)
        except ImportError as error:
            print(f"not measured: {name}: {error}", file=sys.stderr)
    print(f"not measured: {NOT_MEASURED}", file=sys.stderr)
    rows = []
    for number, (samples, ranks) in enumerate(STEPS[:2] if quick else STEPS):
        lengths = lengths_of(samples)
        title = f"step of {samples:,} on {ranks} ranks"

        def plan(lengths: Lengths = lengths, ranks: int = ranks) -> object:
            return plan_step(lengths, capacity=CAPACITY, dp_world_size=ranks, cost=COST)

        for form, use in (("compiled", True), ("NumPy", False)):
            with compiled_forms(use):
                seconds = in_turn({"ours": plan}, repetitions=3 if quick else 21)["ours"]
            rows.append(
                Row(
                    f"{title}, {form}",
                    "ms",
                    seconds * 1e3,
                    "aim",
                    AIMS_MS[form][number],
                    less_is_better=True,
                    aim=1,
                )
            )
        ratio, over, count = waiting(ours_of(lengths, ranks), lengths)
        assert over == 0
        aim = AIMS_WAITING.get((samples, ranks))
        if aim is not None:
            rows.append(
                Row(f"{title}: time ÷ ideal", "", ratio, "aim", aim, less_is_better=True, aim=1)
            )
        once = waiting(ours_of(lengths, ranks, "step"), lengths, once=True)[0]
        rows.append(
            Row(f"{title}, barrier once: time ÷ ideal", "", once, "aim", 1.01, less_is_better=True)
        )
        for name, (peer, most) in peers.items():
            if samples > most or (quick and samples > 1024):
                continue
            with compiled_forms(True):
                times = in_turn(
                    {"ours": plan, "peer": partial(peer, lengths, ranks)},
                    repetitions=1 if samples > 1024 else 3,
                )
            theirs, their_over, their_count = waiting(peer(lengths, ranks), lengths)
            rows.append(
                Row(
                    title,
                    "ms",
                    times["ours"] * 1e3,
                    name,
                    times["peer"] * 1e3,
                    less_is_better=True,
                )
            )
            counts = f"{count} micro-batches, theirs {their_count}, {their_over} over the budget"
            rows.append(
                Row(
                    f"{title}: time ÷ ideal; {counts}", "", ratio, name, theirs, less_is_better=True
                )
            )
    return rows


def _long_steps(quick: bool) -> list[Row]:
    rows = []
    scheduler: Any = None
    try:
        from megatron.core.pipeline_parallel.hybrid_cp_schedule import BalancedCPScheduler

        scheduler = BalancedCPScheduler
    except ImportError as error:
        print(f"not measured: Megatron-Core: {error}", file=sys.stderr)
    for samples, ranks, longest in LONG_STEPS[:1] if quick else LONG_STEPS:
        lengths = (
            np.random.default_rng(0)
            .lognormal(np.log(4000), 1, samples)
            .clip(64, longest)
            .astype(np.int64)
        )
        ideal = float((lengths.astype(np.float64) ** 2).sum()) / ranks
        title = f"context parallelism, {samples:,} on {ranks} ranks"

        def plan(lengths: Lengths = lengths, ranks: int = ranks) -> list[list[list[int]]]:
            return plan_context_parallel(
                lengths, max_tokens_per_rank=MAX_TOKENS_PER_RANK, world_size=ranks, cost=SQUARES
            ).sample_id_groups

        ratio, most, count = _slowest(plan(), lengths, ideal)
        assert most <= MAX_TOKENS_PER_RANK
        rows.append(
            Row(
                f"{title}: time ÷ ideal, {count} micro-batches",
                "",
                ratio,
                "aim",
                1.03,
                less_is_better=True,
                aim=1,
            )
        )
        if scheduler is None:
            continue

        def theirs(lengths: Lengths = lengths, ranks: int = ranks) -> list[list[list[int]]]:
            made = scheduler(MAX_TOKENS_PER_RANK, SimpleNamespace(size=lambda: ranks))
            groups: list[list[list[int]]] = made.get_groups_and_subsamples(
                list(enumerate(lengths.tolist())), None
            )[1]
            return groups

        with compiled_forms(True):
            seconds = in_turn({"ours": plan, "peer": theirs}, repetitions=3)
        other, tokens, number = _slowest(theirs(), lengths, ideal)
        rows.append(
            Row(
                title,
                "ms",
                seconds["ours"] * 1e3,
                "Megatron-Core",
                seconds["peer"] * 1e3,
                less_is_better=True,
                aim=10,
            )
        )
        counts = f"{count} micro-batches within {MAX_TOKENS_PER_RANK:,} tokens, theirs {number} with up to {tokens:,}"
        rows.append(
            Row(
                f"{title}: time ÷ ideal; {counts}",
                "",
                ratio,
                "Megatron-Core",
                other,
                less_is_better=True,
            )
        )
    return rows


def _slowest(
    groups: list[list[list[int]]], lengths: Lengths, ideal: float
) -> tuple[float, int, int]:
    slowest, most = 0.0, 0
    for by_rank in groups:
        degrees: dict[int, int] = {}
        for samples in by_rank:
            for sample in samples:
                degrees[sample] = degrees.get(sample, 0) + 1
        slowest += max(
            sum(int(lengths[s]) ** 2 / degrees[s] for s in samples) for samples in by_rank
        )
        most = max(
            most, *(sum(-(-int(lengths[s]) // degrees[s]) for s in samples) for samples in by_rank)
        )
    return slowest / ideal, most, len(groups)


def _groups(quick: bool) -> list[Row]:
    """Groups that share a rank: time, and balance beside equal ranks or the most costly group, which no plan goes below."""
    rows = []
    for samples, ranks, size in ((1024, 8, 8), (4096, 64, 2), (4096, 64, 8), (4096, 64, 16))[
        : 1 if quick else None
    ]:
        lengths, groups = lengths_of(samples), np.arange(samples) // size
        costs = (24576 * lengths + lengths**2).astype(np.float64)
        bound = max(1.0, float(np.bincount(groups, costs).max()) * ranks / float(costs.sum()))
        title = f"step of {samples:,} on {ranks} ranks in groups of {size}"
        for barrier in ("micro_batch", "step"):
            alone = partial(
                plan_step,
                lengths,
                capacity=CAPACITY,
                dp_world_size=ranks,
                cost=COST,
                barrier=barrier,
            )
            plan = partial(alone, groups=groups)
            with compiled_forms(True):
                seconds = in_turn({"groups": plan, "alone": alone}, repetitions=3 if quick else 11)
            words = f"{title}, barrier {barrier}"
            rows.append(
                Row(
                    words,
                    "ms",
                    seconds["groups"] * 1e3,
                    "without groups",
                    seconds["alone"] * 1e3,
                    less_is_better=True,
                )
            )
            rows.append(
                Row(
                    f"{words}: time ÷ ideal",
                    "",
                    plan().imbalance(barrier),
                    "bound",
                    bound,
                    less_is_better=True,
                )
            )
    return rows


def _trees(quick: bool) -> list[Row]:
    """Rollouts that share their prompts: found and planned from tokens, and positions over the bound of any plan.

    128 prompts of 16 answers, prompts lognormal with median 4,000, answers 1,500; and prompts of 500 with answers of 2,500.
    """
    rows = []
    for prompts, answers, prompt, answer, ranks, aim in (
        (128, 16, 4000, 1500, 64, None),
        (128, 16, 4000, 1500, 8, 1.03),
        (128, 8, 500, 2500, 8, 1.03),
        (8, 256, 4000, 1500, 8, 1.03),
    )[: 1 if quick else None]:
        generator = np.random.default_rng(0)
        trunks = generator.lognormal(np.log(prompt), 0.5, prompts).clip(64, CAPACITY // 2)
        ids = []
        for trunk in trunks.astype(int).tolist():
            shared = generator.integers(0, 150_000, trunk, dtype=np.int32)
            for length in generator.lognormal(np.log(answer), 0.6, answers).clip(16, CAPACITY // 2):
                ids.append(
                    np.r_[shared, generator.integers(0, 150_000, int(length), dtype=np.int32)]
                )
        ids = [ids[place] for place in generator.permutation(len(ids)).tolist()]
        lengths = np.array([len(row) for row in ids])
        plan = partial(plan_step, lengths, capacity=CAPACITY, dp_world_size=ranks, cost=COST)

        def work(ids: list[npt.NDArray[np.int32]] = ids, plan: Any = plan) -> Any:
            return plan(prefixes=find_step_prefixes(ids))

        title = f"{prompts} prompts of {answers} answers ({prompt:,} and {answer:,} tokens) on {ranks} ranks"
        with compiled_forms(True):
            seconds = in_turn({"trees": work, "flat": plan}, repetitions=3 if quick else 21)
        words = f"{title}: {lengths.sum() / 1e6:.1f} M tokens found and planned"
        rows.append(
            Row(words, "ms", seconds["trees"] * 1e3, "aim", 100.0, less_is_better=True, aim=1)
        )
        prefixes = find_step_prefixes(ids)
        step = plan(prefixes=prefixes)
        items = prepare_step_items(lengths, capacity=CAPACITY, cost=COST, groups=None, budgets=None)
        forest = StepForest.of(items, prefixes, COST).forest
        bound = bound_of_trees(forest, np.array([CAPACITY, NO_LIMIT]))
        words = f"{title}: positions ÷ bound, {step.num_micro_batches} micro-batches"
        ratio = step.tokens.sum() / bound.tokens
        rows.append(
            Row(
                words, "", ratio, "bound" if aim is None else "aim", aim or 1.0, less_is_better=True
            )
        )
        flat = plan()
        times = [float(one.costs.max(axis=0).sum()) for one in (step, flat)]
        words = f"{title}: time of a step, flat packs in {flat.num_micro_batches} micro-batches"
        rows.append(Row(words, "", 1.0, "flat", times[1] / times[0], less_is_better=True))
        rows.append(
            Row(
                f"{title}: time ÷ equal ranks",
                "",
                step.imbalance(),
                "equal",
                1.0,
                less_is_better=True,
            )
        )
    return rows


def _data_sets(quick: bool) -> list[Row]:
    """The default plan of a small data set: lengths of chats, and of rollouts."""
    chats = (
        np.random.default_rng(0).lognormal(np.log(300), 1, 20_000).clip(10, 4096).astype(np.int32)
    )
    rows = []
    for noun, lengths, capacity in (
        ("chats", chats, 4096),
        ("rollouts", lengths_of(20_000).astype(np.int32), CAPACITY),
    ):
        plan = partial(plan_packs, lengths, capacity=capacity)
        with compiled_forms(True):
            seconds = in_turn({"ours": plan}, repetitions=3 if quick else 21)["ours"]
        title = f"plan_packs of 20,000 lengths of {noun}, compiled"
        rows.append(Row(title, "ms", seconds * 1e3, "aim", 5.0, less_is_better=True, aim=1))
    return rows


def measure(quick: bool) -> list[Row]:
    warm_up()
    return [
        *_steps(quick),
        *_groups(quick),
        *_trees(quick),
        *_long_steps(quick),
        *_data_sets(quick),
    ]


if __name__ == "__main__":
    main_of(measure, __doc__)
