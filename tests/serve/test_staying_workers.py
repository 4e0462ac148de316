"""Every loader in PyTorch's workers, which stay or not: the epochs that are set, in the order of the loader itself."""

from functools import partial
from itertools import islice
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from brimful import PackLoader, PlanSettings, TokenBudgetBatches  # noqa: E402
from brimful.base.progress import Progress  # noqa: E402
from brimful.clusters import shared_plan  # noqa: E402
from brimful.dynamic import TokenBudget, Warmup, Window, WindowBatches  # noqa: E402
from brimful.dynamic.request_sampler import RequestSampler  # noqa: E402
from brimful.errors import SettingsError  # noqa: E402
from brimful.serve.worker_loader import LoaderDataset, WorkerLoader  # noqa: E402
from brimful.stream import StreamLoader  # noqa: E402
from brimful.testing.toys import toy_chat_encoder, toy_pack, toy_packs, toy_stream  # noqa: E402
from tests.marks import long_but  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore:This DataLoader will create", "ignore:.*fork")

LENGTHS = [7, 6, 4, 2, 5, 3, 9, 1, 8, 4, 6, 2, 3, 5, 7]
CHATS = [{"prompt": f"{number}+{number}?", "completion": str(2 * number)} for number in range(9)]
EPOCHS = (0, 1, 2, 5, 1)
SET, MOVED_ON = "epochs that are set", "epochs that follow each other"


def rows():
    return [{"input_ids": [number + 1] * length} for number, length in enumerate(LENGTHS)]


def samples(packs):
    return [(int(sample), bool(pack.num_loss_tokens)) for pack in packs for sample in pack.sample_ids]


class OnceMore:
    """A stream that begins again, and differs by its epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        return (toy_pack([length], first_sample=100 * self.epoch + number) for number, length in enumerate(LENGTHS))


@pytest.fixture
def make(tmp_path):
    """A factory of loaders: each of its loaders is at its beginning."""
    stream = toy_stream(tmp_path / "stream", [3, 2, 4])
    plans = []

    def shared():
        settings = PlanSettings(capacity=64)
        options = {"directory": tmp_path, "progress": Progress(), "job": str(len(plans))}
        plans.append(shared_plan(CHATS, toy_chat_encoder(), settings, **options))
        return PackLoader(plans[-1].dataset(), samples)

    budget = partial(TokenBudget, 10, min_buffered=4)
    makers = {
        "budget": lambda: TokenBudgetBatches(rows(), budget(), samples, lengths=LENGTHS),
        "budget that grows": lambda: TokenBudgetBatches(
            rows(), budget(capacity=10, warmup=Warmup(steps=25, start=2)), samples, lengths=LENGTHS
        ),
        "budget of one rank": lambda: TokenBudgetBatches(
            rows(), budget(), samples, lengths=LENGTHS, dp_rank=1, dp_world_size=2, micro_batches=2
        ),
        "window": lambda: WindowBatches(rows(), Window(10, size=6), samples, lengths=LENGTHS),
        "packs": lambda: PackLoader(toy_packs(7), samples),
        "balanced packs": lambda: PackLoader(toy_packs(7), samples, costs=range(1, 8), window_steps=2),
        "stream of packs": lambda: StreamLoader(stream, samples, lanes=1),
        "shared plan": shared,
    }
    yield lambda kind: makers[kind]()
    for plan in plans:
        plan.close()


KINDS = [
    "budget", "budget that grows", "budget of one rank", "window", "packs", "balanced packs", "stream of packs",
    "shared plan",
]  # fmt: skip


def in_workers(loader):
    """The loader as a data set: composed batches are one themselves."""
    return loader if isinstance(loader, torch.utils.data.IterableDataset) else LoaderDataset(loader)


def data_loader(dataset, num_workers, *, stays=True, **options):
    stays = stays and num_workers > 0
    return DataLoader(
        dataset, batch_size=None, num_workers=num_workers, persistent_workers=stays, collate_fn=list, **options
    )


def served(loader, batches, epochs):
    """What is served epoch by epoch; None: whichever follows."""
    epochs_served = []
    for epoch in epochs:
        if epoch is not None:
            loader.set_epoch(epoch)
        epochs_served.append(list(batches))
    return epochs_served


def check_law(make, kind, num_workers, epochs=EPOCHS, stops=None, **options):
    """Stopped after each number of batches, and resumed in workers: as the loader serves it."""
    stops = range(len(list(make(kind))) + 1) if stops is None else stops
    for stop in stops:
        first, loader, dataset = make(kind), make(kind), in_workers(make(kind))
        list(islice(first, stop))
        state = first.state_dict()
        for target in (loader, dataset):
            target.load_state_dict(state)
        expected = served(loader, loader, epochs)
        assert served(dataset, data_loader(dataset, num_workers, **options), epochs) == expected, (stop, options)


@pytest.mark.parametrize("kind", KINDS)
def test_workers_that_stay_serve_the_epoch_that_is_set(make, kind):
    check_law(make, kind, 2, stops=[0, 3])


@pytest.mark.parametrize(("num_workers", "stays"), [(0, False), (1, True), (2, False), (3, True)])
def test_any_number_of_workers_staying_or_not(make, num_workers, stays):
    check_law(make, "budget that grows", num_workers, stops=[0, 2], stays=stays)


@pytest.mark.long
@pytest.mark.parametrize("stays", [True, False])
@pytest.mark.parametrize("num_workers", [0, 1, 2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_resumed_at_every_batch(make, kind, num_workers, stays):
    check_law(make, kind, num_workers, stays=stays)


@pytest.mark.parametrize("kind", long_but({"window"}, KINDS))
def test_spawned_workers(make, kind):
    """What they share with the training process is pickled into them."""
    check_law(make, kind, 1, stops=[3], multiprocessing_context="spawn")


@pytest.mark.long
@pytest.mark.parametrize("method", ["spawn", "forkserver"])
@pytest.mark.parametrize("kind", KINDS)
def test_workers_started_otherwise(make, kind, method):
    check_law(make, kind, 2, stops=[3], multiprocessing_context=method)


@pytest.mark.parametrize("kind", ["budget that grows", "window", "packs"])
def test_without_a_set_epoch_they_serve_one_after_another(make, kind):
    """As Lightning iterates: it sets no epoch of a data set."""
    expected = served(loader := make(kind), loader, [None] * 3)
    for num_workers in (1, 2):
        dataset = in_workers(make(kind))
        assert served(dataset, data_loader(dataset, num_workers), [None] * 3) == expected


@pytest.mark.parametrize("kind", ["budget that grows", "packs", "shared plan"])
@pytest.mark.parametrize("taken", [1, 2, 4])
def test_an_abandoned_iteration(make, kind, taken):
    """Some workers have seen the end of it, others not: all begin where they are told."""
    expected = served(loader := make(kind), loader, [0, 1])
    dataset = in_workers(make(kind))
    batches = data_loader(dataset, 2)
    assert list(islice(batches, taken)) == expected[0][:taken]
    dataset.set_epoch(0)
    assert list(islice(batches, taken)) == expected[0][:taken], "begun again"
    dataset.set_epoch(1)
    assert list(batches) == expected[1]


@pytest.mark.parametrize("num_workers", [1, 2])
@pytest.mark.parametrize("kind", ["budget", "packs"])
def test_a_state_is_not_taken_by_workers_that_stay(make, kind, num_workers):
    """They would go on with the samples from before it."""
    expected = served(loader := make(kind), loader, [0, 1])
    (first := make(kind)).set_epoch(1)
    next(iter(first))
    dataset = in_workers(make(kind))
    batches = data_loader(dataset, num_workers)
    assert list(batches) == expected[0]
    dataset.load_state_dict(first.state_dict())
    for _ in range(2):
        with pytest.raises(SettingsError, match=r"a state was loaded after these workers were started.*new DataLoader"):
            list(batches)
    dataset.set_epoch(1)
    assert list(data_loader(dataset, 2)) == expected[1][1:]


@pytest.mark.parametrize("kind", ["window", "packs"])
def test_two_data_loaders_of_one_loader(make, kind):
    expected = served(loader := make(kind), loader, range(4))
    dataset = in_workers(make(kind))
    both = data_loader(dataset, 2), data_loader(dataset, 2)
    assert [served(dataset, both[epoch % 2], [epoch])[0] for epoch in range(4)] == expected


def test_a_copy_has_calls_of_its_own(make):
    """A copy that is moved must not move the workers of the first, nor lose its own."""
    import pickle

    expected = served(loader := make("budget"), loader, range(3))
    first = make("budget")
    batches = data_loader(first, 2)
    assert list(batches) == expected[0]
    for copied in (first.fork(), pickle.loads(pickle.dumps(first))):
        others = data_loader(copied, 2)
        assert served(copied, others, [2, 1]) == [expected[2], expected[1]]
    first.set_epoch(1)
    assert list(batches) == expected[1]


def test_a_stream_in_its_only_worker():
    for epochs in ([0, 1, 5, 1], [None] * 3):
        loader, dataset = (WindowBatches(OnceMore(), Window(10, size=4), samples) for _ in range(2))
        assert served(dataset, data_loader(dataset, 1), epochs) == served(loader, loader, epochs)


@pytest.mark.parametrize("kind", ["budget that grows", "balanced packs", "shared plan"])
def test_orders_that_stay_in_the_training_process(make, kind):
    """A sampler of requests and ``WorkerLoader``, whose workers stay or are asked to."""
    expected = served(loader := make(kind), loader, EPOCHS)
    sampler = RequestSampler(make(kind))
    options: dict[str, Any] = {"num_workers": 2, "persistent_workers": True, "collate_fn": list}
    batches = DataLoader(sampler.dataset, sampler=sampler, batch_size=None, **options)
    assert served(sampler, batches, EPOCHS) == expected
    workers = WorkerLoader(make(kind), num_workers=2, data_loader={"persistent_workers": True, "collate_fn": list})
    assert served(workers, workers, EPOCHS) == expected


def test_shared_plans_need_the_training_process(make):
    """A worker that moved on alone would plan, each process for itself."""
    batches = data_loader(in_workers(make("shared plan")), 2)
    assert list(batches)
    with pytest.raises(SettingsError, match="in a worker, and serves epoch 0: set_epoch belongs to the process that"):
        list(batches)
