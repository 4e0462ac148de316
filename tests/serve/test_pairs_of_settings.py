"""Each two settings of a loader together: the same steps on each rank, each sample once, resumable.

Four loaders: of packs by a schedule, of micro-batches by a budget, of windows, and of a stream. A pair is refused in one line
that the table here holds, or it keeps every law.
"""

from __future__ import annotations

import json
from collections import Counter
from itertools import combinations
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful import PackLoader, TokenBudgetBatches
from brimful.dynamic.composed_batches import WindowBatches
from brimful.dynamic.online_window import Window
from brimful.dynamic.token_budget import SampleCount, TokenBudget, Warmup
from brimful.encode.encoded import EncodedSample
from brimful.errors import BrimfulError
from brimful.stream import StreamLoader
from brimful.testing.toys import toy_packs, toy_stream

RNG = np.random.default_rng(3)
NUM_PACKS = 11
COSTS = RNG.uniform(1.0, 9.0, NUM_PACKS)
PART_COSTS = RNG.uniform(0.0, 9.0, (NUM_PACKS, 2))
LENGTHS = [3, 5, 2, 4, 8, 1, 1, 6, 2, 7, 3, 12, 9, 4]
LOSS_TOKENS = [max(0, length - 1 - number % 2) for number, length in enumerate(LENGTHS)]
CAPACITY = 10

RANKS: dict[str, dict[str, Any]] = {
    "2 ranks": {"dp_world_size": 2},
    "3 ranks": {"dp_world_size": 3},
    "2 micro-batches": {"micro_batches": 2},
    "tail drop": {"tail": "drop"},
    "tail repeat": {"tail": "repeat"},
    "seed None": {"seed": None},
    "seed": {"seed": 7},
}
SCHEDULE = {
    **RANKS,
    "2 packs": {"packs_per_micro_batch": 2},
    "costs": {"costs": COSTS},
    "costs of parts": {"costs": PART_COSTS},
    "window of 1": {"window_steps": 1},
    "window of 3": {"window_steps": 3},
}
BUDGET = {
    **RANKS,
    "targets": {"count": "loss_tokens", "capacity": 15},
    "exact": {"fit": "exact"},
    "one waits": {"min_buffered": 1},
    "warmup": {"warmup": Warmup(steps=2, start=4)},
    "more room": {"capacity": 14},
    **{f"overflow {name}": {"overflow": name} for name in ("truncate", "truncate_left", "split")},
    "samples": {"samples": 2},
}
WINDOW = {
    **RANKS,
    "window of 1": {"size": 1},
    "at most 3 packs later": {"max_wait": 3},
    "next fit": {"algorithm": "next_fit"},
    "first fit": {"algorithm": "first_fit_decreasing"},
    "min_fill": {"min_fill": 0.7},
    **{f"overflow {name}": {"overflow": name} for name in ("truncate", "truncate_left", "split")},
}
STREAM = {
    "2 ranks": {"dp_world_size": 2},
    "4 ranks": {"dp_world_size": 4},
    "8 packs a step": {"lanes": 8},
    "by packs": {"assign": "pack"},
    "by lanes": {"assign": "lane"},
    "1 pack": {"packs_per_micro_batch": 1},
    "2 packs": {"packs_per_micro_batch": 2},
    "tail drop": {"tail": "drop"},
    "repeat": {"repeat": True},
    "group": {"group": "training"},
    "skip": {"on_corrupt": "skip"},
}
LOADERS: dict[str, dict[str, Any]] = {"schedule": SCHEDULE, "budget": BUDGET, "window": WINDOW, "stream": STREAM}

REFUSED = {
    ("budget", "exact", "targets"): "fit='exact' fills a budget of all tokens",
    ("stream", "2 packs", "4 ranks"): "packs_per_micro_batch 2 does not divide the 1 packs",
}


class Samples:
    """Samples by index, of which each token is a target but the first, and the last of every second."""

    def __len__(self):
        return len(LENGTHS)

    def __getitem__(self, index):
        length = LENGTHS[index]
        mask = np.arange(length) < length - index % 2
        return EncodedSample(np.full(length, index + 1, dtype=np.int32), mask)


def content(packs):
    """Samples of a micro-batch with their places; none of a pack without loss that only fills it."""
    return [
        (int(sample), int(start), int(length))
        for pack in packs
        for sample, start, length in zip(pack.sample_ids, pack.starts, np.diff(pack.cu_seqlens), strict=True)
    ]


@pytest.fixture(scope="module")
def stream(tmp_path_factory):
    return toy_stream(tmp_path_factory.mktemp("stream") / "stream", [3, 2, 4, 2, 3, 2, 1, 3], lanes=4)


def ranks_of(kind: str, options: dict[str, Any], stream: str) -> list[Any]:
    """A loader for each rank."""
    options = dict(options)
    world = options.pop("dp_world_size", 1)
    ranks = [{"dp_rank": rank, "dp_world_size": world} for rank in range(world)]
    if kind == "schedule":
        return [PackLoader(toy_packs(NUM_PACKS), **rank, **options) for rank in ranks]
    if kind == "stream":
        return [StreamLoader(stream, **rank, **options) for rank in ranks]
    of_ranks = {name: options.pop(name) for name in ("micro_batches", "tail", "seed") if name in options}
    if kind == "window":
        batching: Any = Window(CAPACITY, **{"size": 4, "overflow": "drop", **options})
    elif "samples" in options:
        batching = SampleCount(options["samples"])
    else:
        batching = TokenBudget(CAPACITY, **{"min_buffered": 3, "overflow": "drop", **options})
    loader = WindowBatches if kind == "window" else TokenBudgetBatches
    targets: dict[str, Any] = {} if kind == "window" else {"loss_tokens": LOSS_TOKENS}
    return [loader(Samples(), batching, lengths=LENGTHS, **targets, **rank, **of_ranks) for rank in ranks]


def served(loaders: list[Any], count: int) -> list[Any]:
    """Some micro-batches of each rank, over the end of epochs."""
    batches: list[list[Any]] = []
    for loader in loaders:
        batches.append([])
        for _ in range(4):  # epochs
            for batch in loader:
                batches[-1].append((content(batch), sum(pack.num_loss_tokens for pack in batch)))
                if len(batches[-1]) == count:
                    break
            if len(batches[-1]) == count:
                break
    return batches


def epoch_of(loaders: list[Any]) -> list[Any]:
    """Micro-batches of all ranks, of one epoch."""
    return [[(content(batch), sum(pack.num_loss_tokens for pack in batch)) for batch in loader] for loader in loaders]


def states_of(loaders: list[Any]) -> Any:
    states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
    assert all(state == states[0] for state in states), "ranks have states of their own"
    return states[0]


PAIRS = [
    (kind, one, other)
    for kind, choices in LOADERS.items()
    for one, other in combinations(choices, 2)
    if not set(choices[one]) & set(choices[other])
    # A number of samples has no other setting than where and how it is served.
    and ("samples" not in (one, other) or {one, other} <= {*RANKS, "samples"})
]


@pytest.mark.parametrize(("kind", "one", "other"), PAIRS, ids=lambda name: name.replace(" ", "_"))
def test_two_settings_of_a_loader_keep_every_law(kind, one, other, stream):
    """Each alone is tested; what two do together is first seen by a training."""
    options = LOADERS[kind][one] | LOADERS[kind][other]
    micro = options.get("micro_batches", 1)
    if refusal := REFUSED.get((kind, *sorted((one, other)))):
        with pytest.raises(BrimfulError) as caught:
            ranks_of(kind, options, stream)
        assert refusal in str(caught.value)
        assert "\n" not in str(caught.value)
        return
    if kind == "stream":
        of_rank = options.get("lanes", 4) // options.get("dp_world_size", 1)
        micro = of_rank // options.get("packs_per_micro_batch", of_rank)
    loaders = ranks_of(kind, options, stream)
    whole = served(loaders, 40 * micro) if kind == "stream" and "repeat" in options else epoch_of(loaders)
    assert len(set(map(len, whole))) == 1, "ranks have steps of their own"
    assert len(whole[0]) % micro == 0
    num_steps = len(whole[0]) // micro
    if "samples" in options:
        full, more = divmod(-(-len(LENGTHS) // 2), len(whole) * micro)
        assert num_steps == full + (more > 0 and options.get("tail") != "drop")
    check_content(kind, options, whole, loaders)
    if "repeat" not in options:
        assert epoch_of(ranks_of(kind, options, stream)) == whole
    # Stopped within a step or after it, in the middle, and at the end of the epoch, with two steps of the next one.
    count = num_steps * micro
    stops = sorted({1, count // 2, count})
    if kind != "stream":
        count += 2 * micro
        whole = served(ranks_of(kind, options, stream), count)
    for stop in stops:
        first = ranks_of(kind, options, stream)
        begun = served(first, stop)
        state = states_of(first)
        again = ranks_of(kind, options, stream)
        for loader in again:
            loader.load_state_dict(state)
        rest = served(again, count - stop) if stop < count else [[] for _ in again]
        assert [a + b for a, b in zip(begun, rest, strict=True)] == whole, f"stopped after {stop} micro-batches"


def check_content(kind: str, options: dict[str, Any], whole: list[Any], loaders: list[Any]) -> None:
    """Each sample once or accounted for, and no micro-batch over its budget."""
    tail = options.get("tail", "pad")
    batches = [batch for rank in whole for batch in rank]
    # A micro-batch that only fills a step has no loss, and composed ones no sample.
    by_number = kind in ("schedule", "stream")
    pieces = Counter(piece for pieces, loss in batches if loss or not by_number for piece in pieces if piece[0] >= 0)
    if kind in ("schedule", "stream"):
        num_packs = NUM_PACKS if kind == "schedule" else 20
        step = len(whole) * options.get("micro_batches", 1) * options.get("packs_per_micro_batch", 1)
        if kind == "stream":
            step = 10**6 if tail == "drop" else 0
            if "repeat" in options:
                assert tail == "drop" or {piece[0] for piece in pieces} == set(range(num_packs))
                return
        packs = Counter(piece[0] for piece in pieces.elements())
        assert set(packs) <= set(range(num_packs))
        repeated = sum(packs.values()) - len(packs)
        if tail == "drop":
            assert repeated == 0
            assert num_packs - len(packs) < step
        else:
            assert set(packs) == set(range(num_packs))
            assert repeated < step if tail == "repeat" else repeated == 0
        return
    ledger = loaders[0].ledger
    assert (ledger.samples_in, ledger.tokens_in) == (len(LENGTHS), sum(LENGTHS))
    capacity = None if "samples" in options else options.get("capacity", CAPACITY)
    samples = {sample for sample, *_ in pieces}
    for pieces_of_batch, _ in batches:
        tokens = sum(length for *_, length in pieces_of_batch)
        assert capacity is None or tokens <= capacity
        targets = sum(
            sum(start <= place < start + length and place > start for place in range(LENGTHS[sample] - sample % 2))
            for sample, start, length in pieces_of_batch
            if sample >= 0
        )
        if "count" in options and len(pieces_of_batch) > 1:
            assert targets <= CAPACITY
    if tail == "pad":
        assert all(times == 1 for times in pieces.values())
        assert sum(length for *_, length in pieces) == ledger.tokens_packed
    policy = options.get("overflow", "drop")
    fitting = {sample for sample, length in enumerate(LENGTHS) if capacity is None or length <= capacity}
    expected = fitting if policy == "drop" else set(range(len(LENGTHS)))
    assert samples <= expected
    if tail != "drop":
        assert samples == expected
        assert ledger.samples_dropped == len(LENGTHS) - len(expected)
    if policy.startswith("truncate") and tail == "pad":
        cut = {sample: (start, length) for sample, start, length in pieces if sample not in fitting and sample >= 0}
        assert set(cut) == set(range(len(LENGTHS))) - fitting
        for sample, (start, length) in cut.items():
            assert length == capacity
            assert start == (0 if policy == "truncate" else LENGTHS[sample] - capacity)
        assert ledger.tokens_truncated == sum(LENGTHS[sample] - capacity for sample in cut)
    if policy == "split" and tail == "pad":
        for sample in range(len(LENGTHS)):
            parts = sorted((start, length) for owner, start, length in pieces if owner == sample)
            assert sum(length for _, length in parts) == LENGTHS[sample]


@settings(max_examples=40)
@given(
    worlds=st.lists(st.sampled_from([(1, 4), (2, 2), (4, 1), (3, 1), (2, 1)]), min_size=2, max_size=4),
    stop=st.integers(0, 1),
    parts=st.booleans(),
    tail=st.sampled_from(["pad", "drop", "repeat"]),
    seed=st.sampled_from([None, 3]),
)
def test_changes_of_ranks_at_one_step_leave_no_trace(worlds, stop, parts, tail, seed):
    """A world that served nothing decides nothing: the packs and global batches equal a direct change's."""
    costs = PART_COSTS if parts else COSTS

    def loaders(world, micro):
        options = {"dp_world_size": world, "micro_batches": micro, "costs": costs, "tail": tail, "seed": seed}
        return ranks_of("schedule", {**options, "window_steps": 2}, "")

    def steps_of(ranks, micro):
        """Packs of each global batch."""
        by_rank = epoch_of(ranks)
        return [
            sorted(
                piece for rank in by_rank for pieces, loss in rank[begin : begin + micro] if loss for piece in pieces
            )
            for begin in range(0, len(by_rank[0]), micro)
        ]

    first = loaders(*worlds[0])
    begun = [
        piece for rank in (served(first, stop * worlds[0][1]) if stop else []) for batch, _ in rank for piece in batch
    ]
    direct, state = loaders(*worlds[-1]), states_of(first)
    for loader in direct:
        loader.load_state_dict(state)
    for shape in worlds[1:]:
        ranks = loaders(*shape)
        for loader in ranks:
            loader.load_state_dict(state)
        state = states_of(ranks)
    sizes = {world * micro for world, micro in worlds}
    counted = {len(loader) for loader in ranks}
    found = steps_of(ranks, worlds[-1][1])
    assert counted == {(stop + len(found)) * worlds[-1][1]}, "counted with the steps that others served"
    if stop or len(sizes) == 1:
        assert found == steps_of(direct, worlds[-1][1])
    if len(sizes) == 1:
        assert found == steps_of(loaders(*worlds[0]), worlds[0][1])[stop:]
    packs = Counter([piece[0] for piece in begun] + [piece[0] for step in found for piece in step])
    step_size = worlds[-1][0] * worlds[-1][1]
    if tail == "drop":
        assert NUM_PACKS - len(packs) < max(sizes)
    else:
        assert set(packs) == set(range(NUM_PACKS))
    assert sum(packs.values()) - len(packs) < (step_size if tail == "repeat" else 1)
