"""Every rank has the same number of steps: four processes of gloo in one start, with two groups of two in it, and kills.

Each check runs a collective in every step, as a trainer does: a rank with a step more would wait in it for ever.
"""

import datetime
import json
import os
import signal
import time

import pytest

torch = pytest.importorskip("torch")

from brimful import PackLoader, TokenBudgetBatches  # noqa: E402
from brimful.dynamic import (  # noqa: E402
    RankAgreement,
    TokenBudget,
    Window,
    WindowBatches,
)
from brimful.errors import CollateError, RankFailedError, StateError  # noqa: E402
from brimful.serve.order import signed  # noqa: E402
from brimful.store.shards import Pack  # noqa: E402
from brimful.stream import StreamLoader  # noqa: E402
from brimful.testing.toys import ToyProducer, toy_pack, toy_packs  # noqa: E402
from tests.dynamic.test_composed_batches import Rows, with_pictures  # noqa: E402
from tests.faults.processes import forked  # noqa: E402

WORLD = 4
OWN_LENGTHS = [[3, 4, 5, 2, 6, 3, 7, 2, 4], [8, 8, 8], [2], [5] * 6]
"""Of the samples of each rank: nine, three, one and six."""

pytestmark = pytest.mark.skipif(not torch.distributed.is_gloo_available(), reason="gloo is missing")


def samples(packs):
    return [int(sample) for pack in packs if pack.num_loss_tokens for sample in pack.sample_ids]


def own_stream(rank, *, slow=False, broken_at=None):
    """The samples of one rank; perhaps late, or with an error in the middle."""
    for number, length in enumerate(OWN_LENGTHS[rank]):
        if number == broken_at:
            raise OSError("the disk of this rank is gone")
        if slow:
            time.sleep(0.02)
        yield toy_pack([length], first_sample=100 * rank + number)


def train(loader, group):
    """Steps with a collective in each; what was served."""
    served = []
    for batch in loader:
        served.append(samples(batch))
        number = torch.tensor([len(served)])
        torch.distributed.all_reduce(number, op=torch.distributed.ReduceOp.MAX, group=group)
        assert int(number) == len(served), "a rank is ahead"
    return served


def checks(rank, folder):
    """All checks of one rank, by name."""
    everybody = torch.distributed.new_group(backend="gloo")
    pairs = [torch.distributed.new_group(ranks, backend="gloo") for ranks in ([0, 1], [2, 3])]
    yield "offline", train(PackLoader(toy_packs(11), dp_rank=rank, dp_world_size=WORLD, micro_batches=2), everybody)
    lengths, packs = [3, 5, 2, 6, 4, 4, 3], [toy_pack([n], first_sample=i) for i, n in enumerate([3, 5, 2, 6, 4, 4, 3])]
    options = {"dp_rank": rank, "dp_world_size": WORLD, "lengths": lengths}
    yield "window", train(WindowBatches(packs, Window(9, size=3), **options), everybody)
    # Two groups at once, each with data of its own ranks.
    yield "pairs", train(PackLoader(toy_packs(5), dp_rank=rank % 2, dp_world_size=2), pairs[rank // 2])
    for tail in ("pad", "drop", "repeat"):
        agree = RankAgreement(tail, group=everybody)
        loader = WindowBatches(own_stream(rank, slow=rank == 3), Window(9, size=2), tail=tail, agree=agree)
        yield f"own streams, {tail}", train(loader, everybody)
    agree = RankAgreement(group=pairs[rank // 2])
    budget = TokenBudgetBatches(own_stream(rank), TokenBudget(9, min_buffered=2), micro_batches=2, agree=agree)
    yield "whose state", whose_state(rank, everybody, pairs[rank // 2])
    yield "own streams, two ranks", train(budget, pairs[rank // 2])
    yield "own streams, resumed", resumed(rank, everybody)
    # A stream that ends while three ranks wait for it: in the middle of a global batch.
    stream = folder / "stream"
    if rank == 0:
        producer = ToyProducer(stream, lanes=WORLD)
        producer.append(3)
    torch.distributed.barrier(group=everybody)
    if rank == 0:
        child = forked(append_later, stream)
    yield "stream", train(StreamLoader(stream, dp_rank=rank, dp_world_size=WORLD, timeout=60), everybody)
    if rank == 0:
        os.waitpid(child, 0)
    # Streams without a sample: of all ranks, of three under drop, and of the second and the fourth, which have nothing to run.
    for name, tail, counts in (("all empty", "pad", (0, 0, 0, 0)), ("empty, drop", "drop", (3, 0, 0, 0)),
                               ("empty", "pad", (3, 0, 2, 0))):  # fmt: skip
        packs = [toy_pack([3], first_sample=number) for number in range(counts[rank])]
        agree = RankAgreement(tail, group=everybody)
        yield (
            name,
            outcome(TokenBudgetBatches(packs, TokenBudget(9, min_buffered=1), tail=tail, agree=agree), everybody),
        )
    begin = time.monotonic()
    broken = own_stream(rank, broken_at=4 if rank == 3 else None)
    try:
        train(WindowBatches(broken, Window(9, size=2), agree=RankAgreement(group=everybody)), everybody)
    except (RankFailedError, OSError) as error:
        yield "raises", [type(error).__name__, str(error), time.monotonic() - begin < 20]


def outcome(loader, group):
    """What was served, or the error in its place."""
    try:
        return train(loader, group)
    except (RankFailedError, CollateError) as error:
        return str(error)


class _Counted:
    """A stream of one rank that can be saved."""

    def __init__(self, rank):
        self._rank, self._number = rank, 0

    def __iter__(self):
        while self._number < 4:
            self._number += 1
            yield toy_pack([3], first_sample=100 * self._rank + self._number)

    def state_dict(self):
        return {"number": self._number}

    def load_state_dict(self, state):
        self._number = state["number"]


def resumed(rank, group):
    """What came in each step of own streams, and what came after each from its state; pictures on rank 1 alone."""
    stream = [with_pictures(number) for number in range(5)] if rank == 1 else list(own_stream(rank))

    def loader():
        agree = RankAgreement(group=group)
        return TokenBudgetBatches(Rows(stream), TokenBudget(9, min_buffered=3), micro_batches=2, agree=agree)

    def served(loader):
        for batch in loader:
            ids = [item.sample_ids.tolist() if isinstance(item, Pack) else [item.sample_id] for item in batch]
            yield [sample for one in ids for sample in one if sample >= 0]

    whole, states, first = [], [], loader()
    for ids in served(first):
        whole.append(ids)
        states.append(json.dumps(first.state_dict()))
    rests = []
    for state in states:
        other = loader()
        other.load_state_dict(json.loads(state))
        rests.append(list(served(other)))
    return whole, rests


def whose_state(rank, everybody, pair):
    """A state saved by each of four ranks, loaded by the same rank, by the next rank, by ranks of a pair, and without ranks."""

    def loader(group):
        agree = None if group is None else RankAgreement(group=group)
        return WindowBatches(_Counted(rank), Window(6, size=2), agree=agree)

    def message(group, state):
        try:
            loader(group).load_state_dict(state)
        except StateError as error:
            return str(error)
        return "loaded"

    saved = loader(everybody)
    next(iter(saved))
    state = saved.state_dict()
    states = [None] * WORLD
    torch.distributed.all_gather_object(states, state, group=everybody)
    other = states[(rank + 1) % WORLD]
    earlier = signed({key: value for key, value in other.items() if key != "own_stream"})
    cases = [(everybody, state), (everybody, other), (pair, state), (None, state), (everybody, earlier)]
    damaged = (everybody, {**state, "own_stream": [rank]})
    return [message(group, case) for group, case in [*cases, damaged]]


def append_later(stream):
    producer = ToyProducer(stream, lanes=WORLD)
    for num_packs in (2, 4, 1, 2):
        time.sleep(0.05)
        producer.append(num_packs)
    producer.close()


def run_rank(rank, folder):
    torch.set_num_threads(1)
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=WORLD,
        timeout=datetime.timedelta(seconds=60),
    )  # fmt: skip
    found = dict(checks(rank, folder))
    (folder / f"rank {rank}.json").write_text(json.dumps(found))


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """What each rank served in each check."""
    folder = tmp_path_factory.mktemp("ranks")
    pids = [forked(run_rank, rank, folder) for rank in range(WORLD)]
    codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
    assert codes == [0] * WORLD
    return [json.loads((folder / f"rank {rank}.json").read_text()) for rank in range(WORLD)]


@pytest.mark.parametrize("name", ["offline", "window", "stream", "own streams, pad", "own streams, repeat"])
def test_all_ranks_have_the_same_steps(found, name):
    """By plan, by window, at the end of a stream that grows, and with streams of one to nine samples, one of them slow."""
    ranks = [rank[name] for rank in found]
    assert len({len(steps) for steps in ranks}) == 1
    served = [sample for steps in ranks for step in steps for sample in step]
    expected = {
        "offline": range(11),
        "window": range(7),
        "stream": range(12),
    }.get(name) or [100 * rank + n for rank, own in enumerate(OWN_LENGTHS) for n in range(len(own))]
    if name == "own streams, repeat":
        assert set(served) == set(expected)
    else:
        assert sorted(served) == sorted(expected), "each sample once"


def test_two_ranks_at_a_time(found):
    """Groups of two in one job: each is equal in itself, and with the other where the data is."""
    pairs = [[rank["pairs"] for rank in found[first : first + 2]] for first in (0, 2)]
    assert [[len(steps) for steps in pair] for pair in pairs] == [[3, 3], [3, 3]]
    assert pairs[0] == pairs[1]
    for first in (0, 2):
        a, b = (rank["own streams, two ranks"] for rank in found[first : first + 2])
        assert len(a) == len(b) > 0
        expected = [100 * rank + n for rank in (first, first + 1) for n in range(len(OWN_LENGTHS[rank]))]
        assert sorted(sample for step in a + b for sample in step) == expected


def test_own_streams_go_on_behind_every_step(found):
    """Streams of nine, five, one and six samples, of which some have pictures: what follows a state is what followed."""
    for rank, (whole, rests) in enumerate(found_rank["own streams, resumed"] for found_rank in found):
        assert rests == [whole[number:] for number in range(1, len(whole) + 1)]
        expected = range(5) if rank == 1 else range(100 * rank, 100 * rank + len(OWN_LENGTHS[rank]))
        assert sorted(sample for step in whole for sample in step) == list(expected)
    assert len({len(rank["own streams, resumed"][0]) for rank in found}) == 1


def test_a_state_of_another_ranks_stream_is_refused_by_name(found):
    """Exchanged, two ranks would serve samples of each other's streams again and never come to their own."""
    for rank, results in enumerate(found_rank["whose state"] for found_rank in found):
        own, other, of_pair, alone, earlier, damaged = results
        assert (own, earlier) == ("loaded", "loaded"), "states of earlier versions do not say whose they are"
        assert f"of the stream that rank {(rank + 1) % 4} of 4 read, and this is rank {rank} of 4: load" in other
        assert f"rank {rank} of 4 read, and this is rank {rank % 2} of 2" in of_pair
        assert "this loader reads no stream of its own (agree)" in alone
        assert "the loader state is damaged" in damaged


def test_under_drop_the_shortest_stream_ends_all(found):
    """One sample on rank 2: one step everywhere."""
    assert [len(rank["own streams, drop"]) for rank in found] == [1, 1, 1, 1]


def test_a_stream_without_a_sample_ends_all_ranks_at_once(found):
    """It has nothing to run with the others, which would wait for it in the collective of their first step."""
    assert [rank["all empty"] for rank in found] == [rank["empty, drop"] for rank in found] == [[]] * 4
    others = "rank 1 could not make its next step: its own error says why"
    own = "this rank's stream gave no sample at all, so it has nothing to run with the other ranks"
    assert [rank["empty"] for rank in found] == [others, own, others, others]


def test_a_rank_that_raises_ends_all_others_by_name(found):
    """In seconds, and not when a collective times out."""
    assert found[3]["raises"] == ["OSError", "the disk of this rank is gone", True]
    others = ["RankFailedError", "rank 3 could not make its next step: its own error says why", True]
    assert [rank["raises"] for rank in found[:3]] == [others] * 3


# Real processes that are killed.

KINDS = ["packs", "window"]


def loader_of(kind, rank, world_size):
    options = {"dp_rank": rank, "dp_world_size": world_size, "micro_batches": 4 // world_size}
    if kind == "packs":
        return PackLoader(toy_packs(30), **options)
    lengths = [2 + number * 7 % 6 for number in range(60)]
    packs = [toy_pack([length], first_sample=number) for number, length in enumerate(lengths)]
    return WindowBatches(packs, Window(9, size=7), lengths=lengths, **options)


def train_until_killed(kind, rank, world_size, folder, die_at):
    """One rank: writes its samples after each step, and the state of the first rank; dies of a signal in the middle."""
    loader = loader_of(kind, rank, world_size)
    begin = folder / "begin.json"
    if begin.exists():
        loader.load_state_dict(json.loads(begin.read_text()))
    step_samples, per_step = [], 4 // world_size
    for number, batch in enumerate(loader, 1):
        step_samples += samples(batch)
        if number == die_at:
            os.kill(os.getpid(), signal.SIGKILL)
        if number % per_step:
            continue
        position = loader.state_dict()
        step = position["step"] if not position["epoch"] else 10**6
        (folder / f"step {step} of {rank} in {os.getpid()}.json").write_text(json.dumps(step_samples))
        (folder / f"new state {rank}").write_text(json.dumps(position))
        if rank == 0:
            os.replace(folder / "new state 0", folder / "state.json")
        step_samples = []


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_resumed_by_other_ranks(tmp_path, kind):
    """Rank processes die of a signal within a step, and half or twice as many go on: the steps that were never stopped."""
    expected = {}
    loaders = [iter(loader_of(kind, rank, 2)) for rank in range(2)]
    while len(expected) < 5:
        expected[len(expected) + 1] = sorted(n for rank in loaders for _ in range(2) for n in samples(next(rank)))
    trained = {}
    # Batches until each rank dies, in the middle of its next step where a step has several.
    for world_size, die_at in ((2, 4), (1, 6), (4, 3)):
        folder = tmp_path / f"of {world_size}"
        folder.mkdir()
        if (tmp_path / "state.json").exists():
            (folder / "begin.json").write_bytes((tmp_path / "state.json").read_bytes())
        pids = [forked(train_until_killed, kind, rank, world_size, folder, die_at) for rank in range(world_size)]
        for pid in pids:
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        for path in sorted(folder.glob("step *")):
            step = int(path.name.split()[1])
            trained.setdefault((step, world_size), []).extend(json.loads(path.read_text()))
        (tmp_path / "state.json").write_bytes((folder / "state.json").read_bytes())
    served = {step: sorted(found) for (step, _), found in trained.items()}
    assert len(served) == len(trained) == 4, "no step was trained twice"
    assert served == {step: expected[step] for step in served}
