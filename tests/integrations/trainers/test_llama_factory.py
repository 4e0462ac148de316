"""Planned micro-batches in LLaMA-Factory v1: by its plugin if installed, and by the methods that it calls."""

import importlib
import sys
from types import ModuleType, SimpleNamespace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from brimful.integrations.trainers.llama_factory import WindowBatcher, install  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of LLaMA-Factory

NAME = "llamafactory.v1.plugins.trainer_plugins.batching"
METHODS = ("get_data_provider_batch_size", "compute_length", "fill_buffer", "generate_batch")


class Buffer(list):
    """What is used of LLaMA-Factory's buffer: the first samples leave."""

    samples = property(list)

    def put(self, samples):
        self.extend(samples)

    def get(self, count):
        first, self[:] = self[:count], self[count:]
        return first


class Plugin:
    """The registry of LLaMA-Factory after 0.9.5: one class for a name."""

    classes = {}

    def __init__(self, name):
        self.name = name

    def register(self):
        return lambda group: self.classes.__setitem__(self.name, group)

    def __getattr__(self, method):
        return getattr(self.classes[self.name], method)


class PluginOf095(Plugin):
    """The function of 0.9.5: one function for a name and a method."""

    def register(self, method):
        return lambda function: self.classes.__setitem__((self.name, method), function)

    def __getattr__(self, method):
        return self.classes[self.name, method]


@pytest.fixture(params=["stand-in", "0.9.5", "installed"])
def batching(request, monkeypatch):
    """The strategy that a configuration names, and a buffer."""
    if request.param == "installed":
        try:
            module = importlib.import_module(NAME)
            buffer = importlib.import_module("llamafactory.v1.utils.objects").StatefulBuffer
        except Exception as error:
            pytest.skip(f"LLaMA-Factory v1 cannot be imported here: {error!r}")
    else:
        module, buffer = ModuleType(NAME), Buffer
        if request.param == "stand-in":
            vars(module).update(BatchingPlugin=Plugin, BaseBatcher=object)
        else:
            vars(module).update(BatchingPlugin=PluginOf095)
        monkeypatch.setitem(sys.modules, NAME, module)
    install()
    return SimpleNamespace(strategy=module.BatchingPlugin("dynamic_padding_free"), buffer=buffer)


def sample(length, first=0):
    """As LLaMA-Factory encodes: positions from 1, and the first half is a prompt without loss."""
    ids, half = list(range(first, first + length)), length // 2
    return {
        "input_ids": ids,
        "attention_mask": [1] * length,
        "labels": [-100] * half + ids[half:],
        "loss_weights": [0.0] * half + [1.0] * (length - half),
        "position_ids": list(range(1, length + 1)),
        "source": "a name",
    }


def info(cutoff_len, num_micro_batch=1, micro_batch_size=1):
    return {"cutoff_len": cutoff_len, "num_micro_batch": num_micro_batch, "micro_batch_size": micro_batch_size}


def edges(row):
    """Boundaries as models of Transformers find them: where positions begin again."""
    starts = torch.nonzero(row["position_ids"][0] == 0)[:, 0].tolist()
    return [*starts, row["input_ids"].shape[1]]


def test_the_oldest_sample_leaves_with_the_fullest_packs(batching):
    """Its own strategy would make 5, 6, 3 2 and 8 of them; here 5 3 is full, and then 6 2."""
    buffer = batching.buffer()
    buffer.put([sample(length, 100 * number) for number, length in enumerate([5, 6, 3, 2, 8])])
    found = []
    while (step := batching.strategy.generate_batch(buffer, info(8))) is not None:
        (row,) = step
        found.append((np.diff(edges(row)).tolist(), len(buffer)))
    assert found == [([5, 3], 3), ([6, 2], 1), ([8], 0)]


def test_a_row_is_its_samples_one_after_the_other(batching):
    """Cut to ``cutoff_len``; no sample's first token is a target; weights are the targets' own."""
    buffer = batching.buffer()
    buffer.put([sample(4, 10), sample(9, 20), {**sample(2, 50), "loss_weights": [0.0, 0.5]}])
    (row,) = batching.strategy.generate_batch(buffer, info(5, micro_batch_size=3))
    assert row["input_ids"].tolist() == [[10, 11, 12, 13, 20, 21, 22, 23, 24, 50, 51]]
    assert row["labels"].tolist() == [[-100, -100, 12, 13, -100, -100, -100, -100, 24, -100, 51]]
    assert row["loss_weights"].tolist() == [[0, 0, 1, 1, 0, 0, 0, 0, 1, 0, 0.5]]
    assert row["position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 2, 3, 4, 0, 1]]
    assert not row["use_cache"].item()


def test_too_few_samples_stay_in_the_buffer(batching):
    buffer = batching.buffer()
    buffer.put([sample(3), sample(4)])
    assert batching.strategy.generate_batch(buffer, info(8, num_micro_batch=2)) is None
    assert len(buffer) == 2
    assert batching.strategy.get_data_provider_batch_size(info(8)) == 1


def test_rows_are_full_and_every_rank_goes_on(batching):
    """The provider begins again at its end; rows of one epoch hold 99 % of what they could."""
    rng = np.random.default_rng(3)
    data = [[sample(int(length))] for length in np.clip(rng.lognormal(4, 1, 3000), 2, 512)]
    buffer, state = batching.buffer(), iter(data)

    def next_samples(restart):
        nonlocal state
        assert restart
        return next(state, None) or next(state := iter(data))

    settings, tokens, steps = info(512, num_micro_batch=4), 0, 150
    for _ in range(steps):
        batching.strategy.fill_buffer(buffer, settings, next_samples)
        rows = batching.strategy.generate_batch(buffer, settings)
        assert len(rows) == 4
        tokens += sum(row["input_ids"].numel() for row in rows)
    assert tokens / (steps * 4 * 512) > 0.99


@pytest.mark.parametrize(("micro_batches", "packs"), [(1, 32), (8, 32), (9, 36)])
@pytest.mark.parametrize("waiting", [0, 3])
def test_a_window_waits_before_a_step(batching, micro_batches, packs, waiting):
    """As many tokens as 32 rows have, or four steps; what waits counts, and the end of the data ends it."""
    buffer, settings = batching.buffer(), info(10, micro_batches, micro_batch_size=2)
    buffer.put([sample(7) for _ in range(waiting)])
    batching.strategy.fill_buffer(buffer, settings, lambda restart: [sample(30)])
    assert len(buffer) == waiting + -(-(packs * 20 - 7 * waiting) // 10), "of a long sample what is left when it is cut"
    rest = iter([[sample(1)], None])
    buffer = batching.buffer()
    batching.strategy.fill_buffer(buffer, settings, lambda restart: next(rest))
    assert len(buffer) == 1


def test_the_fullest_packs_leave_and_weights_of_one_are_those_of_targets(batching):
    """After the pack with the oldest sample; its two samples are in the order in which they came."""
    buffer = batching.buffer()
    buffer.put([sample(length, 100 * number) for number, length in enumerate([2, 9, 7, 10, 8, 1])])
    rows = batching.strategy.generate_batch(buffer, info(10, num_micro_batch=3))
    assert [row["input_ids"].shape[1] for row in rows] == [10, 10, 10]
    assert rows[0]["input_ids"][0, [0, -1]].tolist() == [0, 407]
    assert [len(one["input_ids"]) for one in buffer.get(9)] == [7]
    for row in rows:
        assert row["loss_weights"].tolist() == (row["labels"] != -100).float().tolist()


@pytest.mark.parametrize(("size", "steps"), [(1, 1), (4, 2), (4000, 2000)])
def test_rows_at_equal_distances_are_counted(batching, size, steps):
    """The second half of the data is thrice as long; its length alone, or the first rows, would tell another number."""

    class Provider(list):
        dataset = [10] * (size // 2) + [30] * (size - size // 2)

        def collate_fn(self, rows):
            return [sample(length) for length in rows]

    assert batching.strategy.compute_length(Provider(range(size)), info(40, micro_batch_size=1)) == steps


def test_steps_of_an_epoch_are_estimated_from_tokens(batching):
    """Its own strategies take a sample for a micro-batch: an epoch of ten samples a row would be ten."""

    class Provider(list):
        """Rows of one rank among four; the data set has all."""

        dataset = [{"length": 10}] * 4000

        def collate_fn(self, rows):
            return [sample(row["length"]) for row in rows]

    provider = Provider(range(1000))
    assert batching.strategy.compute_length(provider, info(100, num_micro_batch=2)) == 50


def test_no_sample_waits_for_ever():
    """A short sample after full packs leaves first, as the oldest."""
    buffer = Buffer([sample(7, 0), *(sample(8, 100) for _ in range(9))])
    (row,) = WindowBatcher.generate_batch(buffer, info(8))
    assert row["input_ids"].shape[1] == 7
