"""Stopped at every step and resumed: the same samples in the same global batches, whatever serves them and goes on."""

import json
from copy import copy
from functools import partial
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from brimful import PackedDataset, PackLoader, TokenBudgetBatches, open_source, pack_dataset  # noqa: E402
from brimful.dynamic import TokenBudget  # noqa: E402
from brimful.dynamic.composed_batches import WindowBatches  # noqa: E402
from brimful.dynamic.online_window import Window  # noqa: E402
from brimful.dynamic.request_sampler import RequestSampler  # noqa: E402
from brimful.errors import SettingsError, StateError  # noqa: E402
from brimful.measure import measure_lengths  # noqa: E402
from brimful.plan import plan_packs  # noqa: E402
from brimful.serve.worker_loader import LoaderDataset, WorkerLoader  # noqa: E402
from brimful.stream import StreamLoader  # noqa: E402
from brimful.testing.resume import RunRank, check_resume, resume_cases  # noqa: E402
from brimful.testing.toys import toy_chat_encoder, toy_packs, toy_stream  # noqa: E402
from tests.marks import long_but  # noqa: E402
from tests.trees.plans import written_trees  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore:This DataLoader will create", "ignore:.*fork", "ignore:'set_vital' is deprecated"
)

RNG = np.random.default_rng(0)
TEXTS = [{"text": "x" * int(length)} for length in RNG.integers(2, 15, 36)]
COSTS = RNG.uniform(1.0, 9.0, 400)
CAPACITY = 24


class Encoded:
    """Samples by index, which only they that serve them encode."""

    def __init__(self):
        self.source, self.encoder = open_source(TEXTS), toy_chat_encoder()

    def __len__(self):
        return len(TEXTS)

    def __getitem__(self, index):
        return self.encoder.encode(self.source[index])


@pytest.fixture(scope="module")
def makers(tmp_path_factory):
    """A factory of loaders for each way to serve packs."""
    folder = tmp_path_factory.mktemp("resume")
    source, encoder = open_source(TEXTS), toy_chat_encoder()
    pack_dataset(source, encoder, folder / "packs", capacity=CAPACITY)
    lengths = measure_lengths(source, encoder)
    plan = plan_packs(lengths, capacity=CAPACITY)
    stream = toy_stream(folder / "stream", [4, 3, 5])
    # Each text begins with all shorter ones.
    groups = [list(range(first, 36, 12)) for first in range(12)]
    trees = written_trees(folder / "trees", [row["text"] for row in TEXTS], groups)
    costs = COSTS[: plan.num_packs]

    def ranks(place, **options):
        return {"dp_rank": place.dp_rank, "dp_world_size": place.dp_world_size, **options}

    def of_packs(packs, place, **options):
        return PackLoader(packs, samples, **ranks(place, micro_batches=place.micro_batches), **options)

    def of_samples(kind, batching, place, **options):
        more = ranks(place, micro_batches=place.micro_batches, lengths=lengths.tokens)
        return kind(Encoded(), batching, samples, **more, **options)

    by_plan = PackedDataset.from_plan(source, encoder, plan)
    store = PackedDataset(folder / "packs")
    return {
        "store": partial(of_packs, store),
        "store, balanced": partial(of_packs, store, costs=costs, window_steps=3),
        "store, dropped tail": partial(of_packs, store, tail="drop"),
        "store, repeated tail": partial(of_packs, store, tail="repeat", costs=costs, window_steps=2),
        "source and plan": partial(of_packs, by_plan),
        "store of trees": partial(of_packs, PackedDataset(folder / "trees")),
        "source and plan of trees": partial(of_packs, PackedDataset.from_plan(source, encoder, trees)),
        "stream": lambda place: StreamLoader(
            stream, samples, **ranks(place), lanes=4, packs_per_micro_batch=1, repeat=True
        ),
        "window": partial(of_samples, WindowBatches, Window(CAPACITY, size=9)),
        "token budget": partial(of_samples, TokenBudgetBatches, TokenBudget(CAPACITY, min_buffered=5)),
    }


def samples(packs):
    """Samples of a batch with their places, without packs that only fill it; picklable."""
    return [
        (int(sample), int(start))
        for pack in packs
        if pack.num_loss_tokens
        for sample, start in zip(pack.sample_ids, pack.starts, strict=True)
    ]


KINDS = [
    "store", "store, balanced", "store, dropped tail", "store, repeated tail", "source and plan", "stream", "window",
    "token budget", "store of trees", "source and plan of trees",
]  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
def test_every_step_and_other_worlds(makers, kind):
    """Four ways to serve × same, half and twice the ranks × resumed twice, late, and back; over the end of an epoch."""
    table = check_resume(makers[kind], list, title=kind, num_steps=5, cases=resume_cases(num_workers=[0]))
    assert table.is_exact, str(table)


@pytest.mark.parametrize(
    "kind",
    long_but({"store", "source and plan", "token budget"}, ["store", "source and plan", "window", "token budget"]),
)
def test_workers_and_other_worlds(makers, kind):
    """The same with batches that workers have made ahead: without their processes here, with them below."""
    cases = [case for case in resume_cases(num_workers=[2]) if any(workers for _, workers in case.runs)]

    def make(place):
        return InTurn(makers[kind](place), place.num_workers)

    table = check_resume(make, list, title=kind, num_steps=4, cases=cases)
    assert len(table.rows) == 6
    assert table.is_exact, str(table)


class InTurn(WorkerLoader):
    """A loader in workers, without their processes: one item of each in turn, two ahead of what is delivered."""

    def __init__(self, loader, num_workers):
        super().__init__(loader, num_workers=0)
        self.workers = num_workers

    def _batches(self):
        return in_turn(self.workers, self._dataset)


def in_turn(count, dataset):
    """What a ``DataLoader`` with workers gives."""
    workers = []
    for number in range(count):
        with pytest.MonkeyPatch.context() as patched:
            info = type("Info", (), {"id": number, "num_workers": count})
            patched.setattr("torch.utils.data.get_worker_info", lambda info=info: info)
            # Each process has a copy of its own.
            own = copy(dataset)
            own._loader = dataset._loader.fork()
            workers.append(iter(own))
    if not workers:
        yield from dataset
        return
    ahead = []
    while workers:
        for worker in list(workers):
            item = next(worker, None)
            workers = workers if item is not None else [other for other in workers if other is not worker]
            ahead += [] if item is None else [item]
            if len(ahead) > 2:
                yield ahead.pop(0)
    yield from ahead


def test_real_workers_from_none_to_four_to_one(makers):
    """Processes, and what they prefetched: a state counts what was delivered, and is loaded after they have begun."""
    (case,) = [case for case in resume_cases() if case.name == "0, then 4, then 1 workers"]

    def make(place):
        return WorkerLoader(makers["window"](place), num_workers=place.num_workers)

    case = type(case)(case.name, ((1, 0), (1, 4), (1, 1)), is_late=True)
    table = check_resume(make, list, num_steps=6, cases=[case], stops=[2])
    assert table.is_exact, str(table)


def test_the_state_has_one_head_everywhere_and_is_json(makers):
    """Fingerprint, epoch and step under the same names, equal on all ranks: one copy in a checkpoint is enough."""
    from brimful.testing.resume import RunRank

    for kind in KINDS:
        states = []
        for rank in range(2):
            loader = makers[kind](RunRank(rank, 2, 2, 0))
            list(islice(loader, 4))
            states.append(json.loads(json.dumps(loader.state_dict())))
        assert states[0] == states[1], kind
        head = list(states[0])[:6]
        assert head == ["version", "kind", "fingerprint", "epoch", "step", "places"]
        assert (states[0]["version"], states[0]["epoch"], states[0]["step"], states[0]["places"]) == (4, 0, 2, 0)


@settings(max_examples=40)
@given(
    num_packs=st.integers(1, 40),
    steps=st.lists(st.integers(0, 3), min_size=1, max_size=4),
    worlds=st.lists(st.sampled_from([1, 2, 3, 4]), min_size=5, max_size=5),
    tail=st.sampled_from(["pad", "drop", "repeat"]),
    balanced=st.booleans(),
    seed=st.sampled_from([None, 1]),
)
def test_any_worlds_serve_each_pack_once(num_packs, steps, worlds, tail, balanced, seed):
    """By pack index where steps have another size: none comes twice, and only the tail policy leaves out or repeats."""
    packs, state, served = toy_packs(num_packs), None, []
    for number, world in enumerate(worlds[: len(steps) + 1]):
        if tail == "drop" and num_packs < world:
            return
        options = {"dp_world_size": world, "tail": tail, "seed": seed, "window_steps": 2}
        costs = COSTS[:num_packs] if balanced else None
        loaders = [PackLoader(packs, samples, dp_rank=rank, costs=costs, **options) for rank in range(world)]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        is_last = number == len(steps)
        ranks = [list(loader if is_last else islice(loader, steps[number])) for loader in loaders]
        assert len({len(batches) for batches in ranks}) == 1
        served += [sample for step in zip(*ranks, strict=True) for batch in step for sample, _ in batch]
        states = [json.loads(json.dumps(loader.state_dict())) for loader in loaders]
        assert all(other == states[0] for other in states)
        state = states[0]
        if state["epoch"]:
            break
    if tail == "repeat":
        assert set(served) == set(range(num_packs))
        assert len(served) - num_packs < 4
    else:
        assert len(served) == len(set(served))
        assert num_packs - len(served) < (4 if tail == "drop" else 1)


def test_it_goes_on_by_pack_index_and_says_so(logged):
    """Four ranks, then two without more accumulation: the packs that no step has served, in their order."""
    first = PackLoader(toy_packs(8), samples, dp_world_size=4, seed=None)
    next(iter(first))
    ranks = [PackLoader(toy_packs(8), samples, dp_rank=rank, dp_world_size=2, seed=None) for rank in range(2)]
    for loader in ranks:
        loader.load_state_dict(first.state_dict())
    assert [list(loader) for loader in ranks] == [[[(4, 0)], [(6, 0)]], [[(5, 0)], [(7, 0)]]]
    assert "continues with steps of 2 packs (2 ranks × 1 × 1 pack), previously 4 (4 ranks" in "\n".join(logged)


class InTorchdata:
    """torchdata's loader with its own state; taken up by the sampler, or by the loader itself."""

    def __init__(self, loader, num_workers, *, is_native):
        from torchdata.stateful_dataloader import StatefulDataLoader  # type: ignore[import-not-found]

        self.sampler = RequestSampler(loader)
        options = {"batch_size": None, "num_workers": num_workers, "collate_fn": list}
        self.loader = StatefulDataLoader(self.sampler.dataset, sampler=self.sampler, **options)
        self.is_native = is_native

    def __iter__(self):
        return iter(self.loader)

    def state_dict(self):
        return self.loader.state_dict()

    def load_state_dict(self, state):
        (self.loader if self.is_native else self.sampler).load_state_dict(state)


@pytest.mark.parametrize("is_native", [False, True], ids=["by the sampler", "by the loader"])
@pytest.mark.parametrize("kind", ["store", "source and plan", "window", "token budget"])
def test_in_torchdata_and_other_worlds(makers, kind, is_native):
    """The state is the sampler's, of delivered batches: torchdata keeps nothing of ours elsewhere."""
    pytest.importorskip("torchdata")

    def make(place):
        return InTorchdata(makers[kind](place), place.num_workers, is_native=is_native)

    table = check_resume(make, list, title=kind, num_steps=4, cases=resume_cases(num_workers=[0]))
    assert table.is_exact, str(table)


@pytest.mark.long
@pytest.mark.parametrize("kind", ["store", "source and plan", "window", "token budget"])
def test_in_torchdata_with_workers(makers, kind):
    """What its workers have made ahead is in no state; and 0, then 4, then 1 of them."""
    pytest.importorskip("torchdata")

    def make(place):
        return InTorchdata(makers[kind](place), place.num_workers, is_native=False)

    cases = [case for case in resume_cases(num_workers=[2]) if any(workers for _, workers in case.runs)]
    table = check_resume(make, list, title=kind, num_steps=4, cases=cases, stops=[1, 3])
    assert len(table.rows) == 6
    assert table.is_exact, str(table)


def torchdata_state(sampler, num_workers, since=0):
    """What ``StatefulDataLoader.state_dict`` of torchdata 0.11 returns, as far as we read it."""
    main = {"_index_sampler_state": sampler.state_dict()}
    if not num_workers:
        return {**main, "_num_yielded": 2, "_fetcher_state": None}
    return {"_snapshot": {"_main_snapshot": {**main, "_num_workers": num_workers}}, "_steps_since_snapshot": since}


@pytest.mark.parametrize("num_workers", [0, 4])
def test_a_sampler_takes_the_state_of_any_number_of_workers(num_workers):
    """Also where torchdata is not installed: two batches were asked for, and the third is next."""
    sampler = RequestSampler(PackLoader(toy_packs(5), samples, seed=None))
    requests = list(islice(sampler, 2))
    assert [sampler.dataset[request] for request in requests] == [[(0, 0)], [(1, 0)]]
    state = json.loads(json.dumps(torchdata_state(sampler, num_workers)))
    later = RequestSampler(PackLoader(toy_packs(5), samples, seed=None))
    later.load_state_dict(state)
    batches = torch.utils.data.DataLoader(later.dataset, sampler=later, batch_size=None, collate_fn=list)
    assert list(batches) == [[(2, 0)], [(3, 0)], [(4, 0)]]
    assert list(batches) == [[(number, 0)] for number in range(5)], "the next epoch"
    assert later.state_dict()["epoch"] == 2
    later.set_epoch(7)
    assert (len(list(later)), later.state_dict()["epoch"]) == (5, 8)


def test_a_sampler_left_early_begins_again_where_it_began():
    sampler = RequestSampler(PackLoader(toy_packs(3), samples, seed=None))
    served = [[request.keys for request in islice(sampler, 2)] for _ in range(2)]
    assert served == [[[0], [1]]] * 2


def test_what_a_sampler_cannot_take_is_refused(makers):
    sampler = RequestSampler(PackLoader(toy_packs(5), samples))
    with pytest.raises(StateError, match=r"is 3 batches behind what it delivered: save with snapshot_every_n_steps=1"):
        sampler.load_state_dict(torchdata_state(sampler, 2, since=3))
    with pytest.raises(StateError, match=r"holds no state of a RequestSampler: pass sampler=RequestSampler\(loader\)"):
        sampler.load_state_dict({"_index_sampler_state": None, "_num_yielded": 2})
    with pytest.raises(SettingsError, match=r"a stream does not have yet: WorkerLoader\(loader, num_workers=n\)"):
        RequestSampler(makers["stream"](RunRank(0, 1, 1, 0)))
    with pytest.raises(SettingsError, match=r"in StatefulDataLoader pass sampler=RequestSampler\(loader\)"):
        LoaderDataset(PackLoader(toy_packs(3))).state_dict()


def test_a_stream_or_an_agreement_is_for_one_process():
    """A worker each would read the whole stream, and a worker has no collectives."""
    packs = list(toy_packs(3))
    with pytest.raises(SettingsError, match="the stream list has one position, and workers need one each"):
        LoaderDataset(WindowBatches(packs, Window(8, size=2)))
    with pytest.raises(SettingsError, match="agree asks the other ranks in each step"):
        LoaderDataset(TokenBudgetBatches([[1, 2, 3], [4, 5, 6, 7]], TokenBudget(8), lengths=[3, 4], agree=bool))


class Numbered:
    """A stream that knows its position."""

    def __init__(self, packs):
        self.packs, self.next = packs, 0

    def __iter__(self):
        while self.next < len(self.packs):
            self.next += 1
            yield self.packs[self.next - 1]

    def set_epoch(self, epoch):
        self.next = 0

    def state_dict(self):
        return {"next": self.next}

    def load_state_dict(self, state):
        self.next = state["next"]


@settings(max_examples=30)
@given(lengths=st.lists(st.integers(2, 12), min_size=1, max_size=30), tail=st.sampled_from(["pad", "drop", "repeat"]))
def test_a_window_over_a_stream_packs_as_the_lookahead_does(lengths, tail):
    """One step has two micro-batches on two ranks; all samples of the stream, each in the pack that ``Lookahead`` made."""
    from brimful.testing.toys import toy_pack

    stream = [toy_pack([length], first_sample=number) for number, length in enumerate(lengths)]
    window = Window(12, size=4)
    planner = window.planner()
    packs = planner.add(np.arange(len(lengths)), np.array(lengths)).as_lists() + planner.finish().as_lists()
    ranks = [
        WindowBatches(Numbered(stream), window, samples, dp_rank=rank, dp_world_size=2, micro_batches=2, tail=tail)
        for rank in range(2)
    ]
    batches = [[[sample for sample, _ in batch] for batch in rank] for rank in ranks]
    assert len(batches[0]) == len(batches[1])
    in_order = [batch for pair in zip(*batches, strict=True) for batch in pair]
    expected = packs[: len(packs) // 4 * 4] if tail == "drop" else packs
    assert in_order[: len(expected)] == expected
    assert len(in_order) == (-(-len(expected) // 4) * 4)
    account = ranks[0].ledger
    assert account.samples_in == len(lengths) == account.samples_packed + account.samples_dropped


def test_a_window_over_a_stream_is_resumed_with_its_tokens(makers):
    """Packs that are ready, samples in the window, and samples that the planner has not seen: all in the state."""
    stream = list(toy_packs(23))

    def make(place):
        ranks = {"dp_rank": place.dp_rank, "dp_world_size": place.dp_world_size, "micro_batches": place.micro_batches}
        return WindowBatches(Numbered(stream), Window(9, size=5), samples, **ranks)

    table = check_resume(make, list, num_steps=5, cases=resume_cases(num_workers=[0]))
    assert table.is_exact, str(table)


@pytest.mark.parametrize(
    "harm",
    [
        lambda plan: plan["packs"].pop(),
        lambda plan: plan["numbers"].reverse(),
        lambda plan: plan["packs"].append(plan["packs"][0]),
        lambda plan: plan["planner"]["lengths"].reverse(),
        lambda plan: plan.pop("planner"),
    ],
)
def test_a_damaged_window_is_refused(makers, harm):
    """An edited checkpoint would train samples twice, or never."""
    from brimful.testing.resume import RunRank

    loader = makers["window"](RunRank(0, 1, 1, 0))
    next(iter(loader))
    state = loader.state_dict()
    harm(state["plan"])
    with pytest.raises(StateError, match="damaged"):
        makers["window"](RunRank(0, 1, 1, 0)).load_state_dict(state)


def test_an_error_of_the_source_loses_no_pack_of_the_window():
    """A caller that goes on after it finds the same packs."""
    stream = list(toy_packs(12))
    whole = list(WindowBatches(Numbered(stream), Window(8, size=4), samples, micro_batches=3))

    class Once(Numbered):
        def __iter__(self):
            for pack in super().__iter__():
                if self.next == 9 and not self.broken:
                    self.broken, self.next = True, 8
                    raise ConnectionError("the line is cut")
                yield pack

        broken = False

    source = Once(stream)
    loader = WindowBatches(source, Window(8, size=4), samples, micro_batches=3)
    served = []
    with pytest.raises(ConnectionError):
        served.extend(loader)
    vars(loader.order.feed)["_upcoming"] = None  # the iterator has ended with its error; the source stands where it was
    served.extend(loader)
    assert served == whole


@pytest.mark.parametrize("size", [3, 5])
def test_a_window_is_planned_as_soon_as_it_is_full(size):
    """One sample later would be one more that waits in memory, and another state."""
    source = Numbered(list(toy_packs(9)))
    next(iter(WindowBatches(source, Window(6, size=size))))
    assert source.next == size


def test_the_same_global_batches_of_other_ranks_are_no_warning(logged):
    """Steps of another size are: a trainer that counts steps has to know."""
    state = PackLoader(toy_packs(8), dp_world_size=2).state_dict()
    PackLoader(toy_packs(8), packs_per_micro_batch=2).load_state_dict(state)
    assert logged == []
    PackLoader(toy_packs(8), packs_per_micro_batch=4).load_state_dict(state)
    assert logged == [
        "continues with steps of 4 packs (1 rank × 1 × 4 packs), previously 2 (2 ranks × 1 × 1 pack): the same packs "
        "in the same order"
    ]


def test_a_window_goes_through_json():
    """Trainers save states as they like."""
    stream = list(toy_packs(9))
    make = lambda: WindowBatches(Numbered(stream), Window(9, size=5), samples)  # noqa: E731
    loader = make()
    next(iter(loader))
    resumed = make()
    resumed.load_state_dict(json.loads(json.dumps(loader.state_dict())))
    assert resumed.state_dict() == loader.state_dict()
