"""What is done another way for large inputs: each threshold is lowered, so that small inputs take the second way too.

Either both ways give the same, or a law holds for both. A case names the function of the second way, and fails if the
lowered threshold does not call it more often. A numeric constant of these rooms that no test lowers, and that has no reason
not to be lowered, fails: so a new second way cannot be forgotten.
"""

from __future__ import annotations

import ast
import importlib
import json
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from brimful import measure_lengths, open_packs, open_source, plan_packs, write_packs
from brimful.base.compiling import compiled_forms
from brimful.base.ragged import offsets_of
from brimful.base.rng import generator
from brimful.base.tables import Ragged
from brimful.encode.encoded_samples import is_compared
from brimful.lengths.targets import Targets, runs_of_masks
from brimful.mixtures import Mixture
from brimful.plan.counts.counting_sort import decreasing_order
from brimful.plan.counts.histogram import Histogram, lower_bound
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.order.shuffle import shuffle_classes
from brimful.planners.optimal import pack_optimally
from brimful.planners.optimal.knapsack import SearchLimit, solve_knapsack
from brimful.planners.optimal.minimum_bin_slack import minimum_bin_slack
from brimful.planners.patterns import load_of, remaining
from brimful.planners.vector.pack_vectors import pack_vectors
from brimful.rl import plan_step
from brimful.stream.producer.feed import arriving_lines
from brimful.testing.toys import toy_chat_encoder
from brimful.trees.prefix_order import order_of_trees
from tests.planners.optimal.instances import fewest_packs
from tests.planners.vector.instances import check, matrix
from tests.stream.producer.streams import append, producer, shards_of, texts

ROOT = Path(__file__).parents[2]
ROOMS = (
    "plan",
    "planners",
    "mixtures",
    "measure",
    "sources",
    "encode",
    "serve",
    "store",
    "stream",
    "rl",
    "collate",
    "lengths",
)

LENGTHS = 1 + generator(seed=0, epoch=0, purpose="lengths").integers(60, below=9)


@dataclass(frozen=True)
class Case:
    """A threshold below its place in the package, lowered.

    Attributes:
        constant: module and name.
        low: a value that small inputs pass.
        run: takes an empty folder; its result is the same on both ways. What only a law holds for asserts it and returns
            None.
        second_way: function that is called more often then, by module and name.
    """

    constant: str
    low: Any
    run: Callable[[Path], Any]
    second_way: str | None = None
    form: bool | None = None

    @property
    def id(self) -> str:
        return f"{self.constant}={self.low}"


def ordered(_: Path) -> Any:
    lengths = LENGTHS.astype(np.int32)
    return decreasing_order(lengths).tolist(), decreasing_order(lengths[:0]).tolist()


def counted(_: Path) -> Any:
    of_lengths = Histogram.of(LENGTHS, at_most=9)
    of_counts = Histogram.of_counts(LENGTHS, np.arange(60))
    return [
        (part.lengths.tolist(), part.counts.tolist(), part.counts.dtype)
        for part in (of_lengths, of_counts, of_lengths + of_counts)
    ]


def shuffled(_: Path) -> Any:
    counts = np.array([1, 9, 2, 30, 1, 1, 17])
    items = np.arange(counts.sum(), dtype=np.int32)
    shuffle_classes(items, counts, generator(seed=3, epoch=0, purpose="test"))
    return items.tolist()


def mixed(_: Path) -> Any:
    mixture = Mixture(weights={"a": 3.0, "b": 1.0}, stop="all_exhausted")
    again = Mixture(weights={"a": 3.0, "b": 1.0}, num_samples=90, replacement=True)
    return [
        list(plan_packs(LENGTHS, capacity=12, draw=request, sources={"a": 20, "b": 40})) for request in (mixture, again)
    ]


def decreasing(_: Path) -> Any:
    runs = best_fit_decreasing(Histogram.of(LENGTHS), capacity=11)
    return runs.num_packs, runs.assign(decreasing_order(LENGTHS)).as_lists()


def most_valuable(_: Path) -> Any:
    found = solve_knapsack(np.array([2, 3, 7]), np.array([4, 7, 17]), capacity=40, limit=SearchLimit())
    assert found is not None
    return [array.tolist() for array in found]


def slack(_: Path) -> None:
    for lengths, capacity in (
        (LENGTHS, 13),
        ([7] * 5 + [3] * 2, 13),
        (range(100, 500), 1000),
        ([*range(3, 60)] * 3, 60),
    ):
        items = Histogram.of(np.array(lengths))
        packs = minimum_bin_slack(items, capacity=capacity, limit=SearchLimit())
        assert all(load_of(pattern) <= capacity for pattern in packs)
        assert not len(remaining(items, packs.items()).lengths)


def optimal(_: Path) -> None:
    for capacity, lengths in ((20, [9, 9, 7, 7, 7, 6, 6, 5, 4]), (10, [4, 4, 3, 3, 3, 3]), (100, [34] * 7 + [33])):
        items = Histogram.of(np.array(lengths))
        result = pack_optimally(items, capacity=capacity, time_limit=60)
        fewest = fewest_packs(tuple(lengths), capacity)
        assert lower_bound(items, capacity=capacity) <= result.bound <= fewest <= result.packs.num_packs
        assert result.packs.num_packs <= best_fit_decreasing(items, capacity=capacity).num_packs
    many = Histogram.of(np.random.default_rng(1).integers(100, 480, 900))
    result = pack_optimally(many, capacity=1000, time_limit=60)
    assert sorted(result.packs.assign(np.arange(900)).items.tolist()) == list(range(900))
    assert result.packs.num_packs <= best_fit_decreasing(many, capacity=1000).num_packs


SIZES = np.stack([LENGTHS, LENGTHS[::-1] // 2, 1 + (LENGTHS * 7) % 5], axis=1)


def under_budgets(_: Path) -> Any:
    capacities = matrix([14, 9, 11])
    result = pack_vectors(SIZES, capacities=capacities)
    check(SIZES, capacities, result.packs)
    assert result.bound <= len(result.packs) <= 1.5 * result.bound
    return result


def law_of_budgets(folder: Path) -> None:
    """As plans with and without compiled code are the same, whatever the threshold."""
    plans = []
    for use in (False, True):
        with compiled_forms(use):
            plans.append(under_budgets(folder).packs.as_lists())
    assert plans[0] == plans[1]


def equal_budgets(folder: Path) -> Any:
    return under_budgets(folder).packs.as_lists()


def stepped(_: Path) -> Any:
    costs = LENGTHS * 10.0 + LENGTHS**2.0
    step = plan_step(LENGTHS.astype(np.int32), capacity=12, dp_world_size=3, cost=costs, barrier="micro_batch")
    return [[row.tolist() for row in step.micro_batches(rank)] for rank in range(3)]


def in_order_of_trees(_: Path) -> Any:
    draw = generator(seed=2, epoch=0, purpose="keys")
    rows = [
        np.concatenate([np.full(40, 5), draw.integers(int(size), below=2)]) for size in 1 + draw.integers(30, below=6)
    ]
    rows += [rows[0], rows[0][:40], draw.integers(12, below=2)]
    groups = np.array([index % 3 - 1 for index in range(len(rows))])
    keys = np.concatenate(rows).astype(np.int32)
    return [part.tolist() for part in order_of_trees(keys, offsets_of([len(row) for row in rows]), groups, 4)]


def targets(_: Path) -> Any:
    masks = [[], [True], [True, True], [False, True, False, True, True], [], [True, False]] * 3
    runs = runs_of_masks(
        Ragged(
            np.array([value for mask in masks for value in mask], dtype=bool), offsets_of([len(mask) for mask in masks])
        )
    )
    counts = Targets.of_runs(runs).counts.tolist()
    assert counts == [sum(mask[1:]) for mask in masks]
    return counts


ROWS: list[dict[str, Any]] = [{"text": chr(97 + index % 26) * (1 + index % 7)} for index in range(40)]


def measured(folder: Path) -> Any:
    return measure_lengths(open_source(ROWS), toy_chat_encoder(), cache_dir=folder).tokens.tolist()


def of_parquet(folder: Path) -> Any:
    path = folder / "rows.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path, row_group_size=9)
    source = open_source(path, cache_dir=folder)
    ids = generator(seed=0, epoch=0, purpose="ids").permutation(40).tolist()
    found = [[sample.text for sample in samples] for samples in (source.read(0, 40), source.read_many(ids))]
    assert found[0] == [row["text"] for row in ROWS]
    table = measure_lengths(source, toy_chat_encoder(), cache_dir=folder, num_proc=1)
    assert table.tokens.tolist() == [len(row["text"]) for row in ROWS]
    return found


def of_table(_: Path) -> Any:
    source = open_source(pa.Table.from_pylist(ROWS))
    return [sample.text for sample in source.read(3, 37)]


def listed(folder: Path) -> Any:
    paths = []
    for number in range(4):
        paths.append(str(folder / f"{number}.jsonl"))
        Path(paths[-1]).write_text(json.dumps({"text": "a" * (1 + number)}) + "\n")
    documents = ["a", "bb", paths[0], "c"]
    of_paths, of_texts = (open_source(rows, format="text", cache_dir=folder) for rows in (paths, documents[:2]))
    return [[sample.text for sample in source.read(0, len(source))] for source in (of_paths, of_texts)]


def answered(folder: Path) -> Any:
    path = folder / "rows.jsonl"
    rows = [
        {
            "messages": [
                {"role": ("user", "assistant")[turn % 2], "content": f"{index} {turn}"} for turn in range(index % 7 + 1)
            ]
        }
        for index in range(30)
    ]
    append(path, rows)
    found = []
    for _ in range(2):  # counted, and as kept
        source = open_source(path, per_turn=True, cache_dir=folder)
        found.append([(sample.sample_id, [*(sample.messages or ())]) for sample in source.read(0, len(source))])
    assert found[0] == found[1]
    assert len(found[0]) == sum(max(1, len(row["messages"]) // 2) for row in rows)
    return found[0]


def compared(_: Path) -> Any:
    return bool(is_compared(0))


def packed(folder: Path) -> Any:
    source, encoder = open_source(ROWS), toy_chat_encoder()
    plan = plan_packs(measure_lengths(source, encoder, cache_dir=folder), capacity=9, no_target="keep")
    write_packs(plan, source, encoder, folder / "packs", shard_bytes=200)
    packs = open_packs(folder / "packs")
    backward = [pack.sample_ids.tolist() for pack in reversed([packs[index] for index in range(len(packs))])]
    content = [(pack.input_ids.tolist(), pack.cu_seqlens.tolist(), pack.loss_mask.tolist()) for pack in packs]
    assert len(content) == len(backward) == plan.num_packs
    return content, backward


def piped(_: Path) -> Any:
    read_end, write_end = os.pipe()
    lines = [json.dumps(row) for row in ROWS]
    os.write(write_end, "\n".join(["", *lines[:20], "", *lines[20:]]).encode())
    os.close(write_end)
    try:
        rows = [row for row in arriving_lines(read_end, "a pipe") if row is not None]
    finally:
        os.close(read_end)
    assert rows == ROWS
    return rows


class Encoding:
    """A data set that encodes its own rows."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, index: int) -> Any:
        return {"input_ids": np.full(2 + index % 5, index), "labels": np.full(2 + index % 5, index)}


def wrapped(_: Path) -> Any:
    from brimful import PackedDataset

    return PackedDataset.wrap(Encoding(), 10, seed=None).fingerprint


def streamed(folder: Path) -> Any:
    """Rows that arrive in two parts, and a producer that starts again between them."""
    source, stream = folder / "in", folder / "out"
    source.mkdir()
    lengths = [7, 6, 4, 2, 5, 3, 5, 8, 9, 2, 2, 10, 3, 3, 4]
    append(source / "a.jsonl", texts(lengths)[:8])
    one = producer(source, stream)
    while one.step():
        pass
    append(source / "a.jsonl", texts(lengths)[8:])
    producer(source, stream).close()
    shards = shards_of(stream)
    assert sorted(number for shard in shards for pack in shard for number in pack) == list(range(len(lengths)))
    return shards


CASES = [
    Case("plan.counts.counting_sort.DENSE_LENGTHS", 9, ordered, "plan.counts.counting_sort._radix_order", form=True),
    Case("plan.counts.histogram.DENSE_LENGTHS", 9, counted, "numpy.unique"),
    Case("plan.order.shuffle._CHUNK", 5, shuffled, "plan.order.shuffle._permuted", form=False),
    Case("mixtures.draws._LEAST_REFILL", 1, mixed, "mixtures.draws.Queue.grow"),
    Case(
        "plan.fit.best_fit_decreasing._MAX_COMPILED_CAPACITY",
        10,
        decreasing,
        "plan.fit.best_fit_decreasing.insort",
        form=True,
    ),
    Case("planners.optimal.knapsack._STEPS_PER_BLOCK", 1, most_valuable, "planners.optimal.knapsack.SearchLimit.spend"),
    *[
        Case(f"planners.optimal.minimum_bin_slack.{name}", low, slack, way, form=False)
        for name, low, way in (
            ("_MAX_STEPS_PER_TARGET", 0, None),
            ("_MAX_TARGETS", 1, None),
            ("_MAX_ITEMS_PER_TABLE", 1, "planners.optimal.minimum_bin_slack._search"),
            ("_MAX_PATTERNS_PER_TABLE", 1, "planners.optimal.minimum_bin_slack._search"),
            ("_MAX_TABLES", 0, None),
        )
    ],
    Case("planners.optimal.search._MAX_CAPACITY", 3, optimal),
    Case("planners.optimal.search._FIRST_RESIDUAL_LENGTHS", 1, optimal),
    Case("planners.vector.fill_vectors._MIN_CANDIDATES", 1, law_of_budgets),
    Case("planners.vector.fill_vectors._MIN_CANDIDATES", 5, law_of_budgets),
    Case("planners.vector.fill_vectors._FEW_ITEMS", 0, law_of_budgets),
    Case("planners.vector.fill_vectors._SCORED_ITEMS", 0, law_of_budgets),
    Case("planners.vector.fill_vectors._WORTH_COMPILING", 1, equal_budgets),
    Case("planners.vector.pack_vectors._SAMPLE_ITEMS", 9, law_of_budgets),
    Case("planners.vector.pack_vectors._REPACK_ROUNDS", ((10, 8), (20, 4)), law_of_budgets),
    Case("rl.fill_bins.WORTH_COMPILING", 10**9, stepped),
    Case("rl.fill_bins.WORTH_COMPILING", 0, stepped),
    Case("trees.prefix_order._WORTH_COMPILING", 1, in_order_of_trees),
    Case("lengths.targets._ROWS_AT_ONCE", 1, targets),
    Case("lengths.targets._ROWS_AT_ONCE", 4, targets),
    Case("measure.block_task._ITEM_CHARACTERS", 1, measured),
    Case("measure.block_task._BATCHES_AHEAD", 1, measured),
    Case("sources.arrow_files._PIECE_ROWS", 2, of_parquet),
    Case("sources.arrow_files._GROUPS_IN_MEMORY", 1, of_parquet, "pyarrow.parquet.ParquetFile.read_row_group"),
    Case("sources.arrow_files._ROWS_AT_ONCE", 2, of_parquet),
    Case("sources.reading._ROWS_AT_ONCE", 3, of_parquet),
    Case("sources.memory._BATCH_ROWS", 3, of_table),
    Case("sources.opening._ITEMS_CHECKED_AS_PATHS", 1, listed),
    Case("sources.answers._FEW_ROWS", 0, answered, "sources.answers._load"),
    Case("sources.answers._FEW_BYTES", 0, answered, "sources.answers._load"),
    Case("sources.answers._ROWS_AT_ONCE", 1, answered),
    Case("sources.settings._ROWS_FOR_DETECTION", 1, of_parquet),
    Case("encode.encoded_samples._COMPARED_ONE_OF", 1, compared),
    Case("serve.pack_store._CACHE_SHARE", 1 << 40, packed),
    Case("serve.pack_store._MAX_OPEN_SHARDS", 2, packed),
    Case("serve.wrapped._NUM_PROBES", 1, wrapped),
    Case("store.shards.format._SINK_BUFFER", 1, packed),
    Case("stream.producer.registration._ROWS", 1, streamed),
    Case("stream.producer.directory_feed._CHECKED_BYTES", 1, streamed),
    Case("stream.producer.directory_feed._PIECE_BYTES", 3, streamed),
    Case("stream.producer.feed._PIECE_BYTES", 1, piped, "os.read"),
    Case("stream.producer.feed._PIECE_BYTES", 7, piped, "os.read"),
    Case("stream.producer.packing_producer._BATCH", 1, streamed),
    Case("stream.producer.packing_producer._BATCH", 3, streamed),
]


def _place(path: str) -> tuple[Any, str]:
    """The object that holds a name, and the name."""
    parts = path.split(".")
    owner: Any = None
    for end in range(1, len(parts)):
        name = ".".join(parts[:end])
        try:
            owner = importlib.import_module(name if parts[0] in ("numpy", "pyarrow", "os") else f"brimful.{name}")
        except ImportError:
            owner = getattr(owner, parts[end - 1])
    return owner, parts[-1]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_both_ways_give_the_same_or_keep_the_law(case, monkeypatch, tmp_path):
    """Without it the way of large inputs is first taken by a user's large input."""
    if case.form:
        pytest.importorskip("numba")
    if case.run is optimal:
        pytest.importorskip("highspy")
    if case.run is law_of_budgets:
        pytest.importorskip("numba")
    calls = [0]
    if case.second_way:
        owner, name = _place(case.second_way)
        function = getattr(owner, name)

        def counting(*args: Any, **options: Any) -> Any:
            calls[0] += 1
            return function(*args, **options)

        monkeypatch.setattr(owner, name, counting)
    results, called = [], []
    for lowered in (False, True):
        folder, calls[0] = tmp_path / str(lowered), 0
        folder.mkdir()
        if lowered:
            monkeypatch.setattr(*_place(case.constant), case.low)
        if case.form is None:
            results.append(case.run(folder))
        else:
            with compiled_forms(case.form):
                results.append(case.run(folder))
        called.append(calls[0])
    assert results[0] == results[1]
    if case.second_way:
        assert called[1] > called[0], f"the second way is not taken: {called}"


NOT_LOWERED = {
    "a version or a mark in files": "_VERSION _BLOCKS_VERSION _ACK_VERSION STATE_VERSION SHARD_VERSION ATTACHMENT_VERSION "
    "ALONE REJECTED LANES SAMPLES_OF_PRODUCER _MAX_SAMPLES",
    "a value of a trainer or of arithmetic": "_FUSED_ATTENTION _SLIME_TOKENS DEFAULT_TILE _NO_ITEM _NO_LENGTH "
    "NO_LIMIT _NO_TIME_LIMIT SOLVER_TOLERANCE _UNIT_SCALE _MAX_SCALE _LEVELS _ROUNDS _MIN_BITS _MAX_BITS _PRECISION "
    "_SMALLEST_BUCKET",
    "the largest that is not refused": "_MAX_CAPACITY _MAX_LENGTH _MAX_FILE_BYTES MAX_ROW_BYTES",
    "how good or how long a search or a template is": "_STEPS_OF_START _SECONDS _OPERATIONS _CLOSE_ENOUGH STEPS_PER_ITEM _OPERATIONS_PER_ROW "
    "_OPERATIONS_PER_PATTERN _MAX_PASSES _LEAST_GAIN _MIN_TIMINGS _MIN_SINGULAR_VALUE_RATIO _MIN_SHARE _BALANCE "
    "_MORE_SLACK _LIMITS DEFAULT_WINDOW_STEPS",
    "seconds, or words of a message": "_WARN_SECONDS _SETTLE_SECONDS _LOOK_SECONDS _MAX_WAIT FIRST_WAIT _LATE_LOOKS MAX_AGE MUCH_LOST _MAX_NAMED "
    "_ERRORS_SHOWN _COLUMNS_SHOWN MAX_REJECTS _KEPT_CARRY_OVERS",
    "whether other processes start, which num_proc decides in the tests of measure, store and serve": "_IN_PROCESS_ROWS "
    "_IN_PROCESS_TOKENS _ENCODING_COST _ONE_PROCESS_BYTES _ONE_PROCESS_BLOCKS _NUM_EARLY_BLOCKS _ROW_BYTES "
    "_USUAL_ROW_BYTES",
    "compiled into a loop, or into files; tests pass it with inputs that are large enough": "_BLOCK BATCH_ROWS "
    "serve.wrapped._ROWS_AT_ONCE",
    "an argument, which tests give": "SHARD_BYTES ",
    "how many rows are looked at": "ROWS _ROWS_PER_SAMPLE _MOST_KEYS_AROUND_ROWS _LONGEST_LITERAL",
    "how many files stay open": "_MAX_OPEN",
}
"""Constants that change no way of computing, by reason."""


def _constants() -> dict[str, str]:
    """Numbers in these rooms by name, with their module; trees have their own tests."""
    found = {}
    for room in ROOMS:
        for path in sorted((ROOT / "src/brimful" / room).rglob("*.py")):
            for node in ast.parse(path.read_text("utf-8")).body if "trees" not in path.parts else ():
                names = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
                value = getattr(node, "value", None)
                if value is None or not all(
                    isinstance(part, (ast.Constant, ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop))
                    and not isinstance(getattr(part, "value", 0), (str, bytes, bool, type(None)))
                    for part in ast.walk(value)
                ):
                    continue
                for name in names:
                    if isinstance(name, ast.Name) and re.fullmatch(r"_?[A-Z][A-Z_]+", name.id):
                        module = ".".join(path.relative_to(ROOT / "src/brimful").with_suffix("").parts)
                        found[f"{module}.{name.id}"] = name.id
    return found


def test_each_threshold_is_lowered_by_a_test():
    """A new threshold without a test has a second way that no test takes."""
    tests = [path.read_text("utf-8") for path in (ROOT / "tests").rglob("*.py") if path != Path(__file__)]
    lowered = {case.constant for case in CASES}
    reasons = {name for names in NOT_LOWERED.values() for name in names.split()}
    constants = _constants()
    missing = [
        constant
        for constant, name in constants.items()
        if constant not in lowered
        and not reasons & {name, constant}
        and not any(constant.split(".")[-2] in text and re.search(rf"setattr\(.*[\".]{name}\"", text) for text in tests)
    ]
    assert len(constants) > 100
    assert not missing, f"lower each in a test, or say here why not: {missing}"
    assert not reasons - {*constants, *constants.values()}, "no such constant any more"
