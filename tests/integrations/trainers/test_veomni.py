"""Packs and plain samples in the place of VeOmni's collator, and packs by two lines of its YAML file."""

import importlib
import sys
from itertools import pairwise
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator, PackedDataset, measure_lengths, open_source, plan_packs, write_packs  # noqa: E402
from brimful.collate import Padding  # noqa: E402
from brimful.errors import SettingsError  # noqa: E402
from brimful.integrations.trainers.veomni import SlicingCollator, VeomniPacks, install  # noqa: E402
from brimful.testing.toys import ToyPacks, toy_chat_encoder, toy_pack  # noqa: E402


def micro_batches(features, *, count, collate):
    """What MakeMicroBatchCollator does: the first of each item, then equal parts."""
    features = [feature[0] for feature in features]
    size = len(features) // count
    return [collate(features[start : start + size]) for start in range(0, len(features), size)]


def test_packs_go_through_the_micro_batch_collator():
    packs = VeomniPacks(ToyPacks([toy_pack([3, 2]), toy_pack([4], first_sample=2)]))
    found = micro_batches([packs[0], packs[1]], count=2, collate=PackCollator(dialect="veomni"))
    assert [batch["cu_seq_lens_q"].tolist() for batch in found] == [[0, 3, 5], [0, 4]]
    assert [batch["attention_mask"].tolist() for batch in found] == [[[1] * 5], [[1] * 4]]
    assert [len(item) for item in packs] == [1, 1]


def test_samples_of_its_transforms_are_packed_as_they_are():
    """dyn_bsz: what its batching gathers are dictionaries of tensors, with masks of ones."""
    samples = [
        {"input_ids": torch.tensor([5, 6, 7]), "labels": torch.tensor([-100, 6, 7]), "attention_mask": torch.ones(3)},
        {"input_ids": torch.tensor([8, 9]), "labels": torch.tensor([8, 9]), "attention_mask": torch.ones(2)},
    ]
    batch = PackCollator(dialect="veomni", pad_to=8)(samples)
    assert batch["input_ids"].tolist() == [[5, 6, 7, 8, 9, 0, 0, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 7, -100, 9, -100, -100, -100]]
    assert batch["position_ids"].tolist() == [[0, 1, 2, 0, 1, 0, 1, 2]]
    assert int(batch["tail_padding_length"]) == 3
    assert samples[1]["labels"].tolist() == [8, 9], "VeOmni's own collator writes into the samples"


class HalfOfTheRow:
    """What VeOmni's SequenceParallelCollator does to a text row that is a multiple of the ranks: a shift, and cuts."""

    sp_size = 2

    def __init__(self, sp_rank):
        self.sp_rank = sp_rank

    def __call__(self, batch):
        assert "loss_weights" not in batch
        labels = torch.nn.functional.pad(batch["labels"][:, 1:], (0, 1), value=-100)
        half = slice(self.sp_rank * labels.shape[1] // 2, (self.sp_rank + 1) * labels.shape[1] // 2)
        cut = {key: batch[key][:, half] for key in ("input_ids", "position_ids")}
        return {**batch, **cut, "labels": labels[:, half], "cu_seq_lens_q": "found where positions are 0"}


def test_rows_are_cut_with_their_weights_and_boundaries():
    """Uncut, weights would stand at other labels; unshifted, each would count for the token before."""
    samples = [
        {"input_ids": [5, 6, 7], "loss_weights": [9, 0.5, 2], "ds_idx": 4},
        {"input_ids": [8, 9], "loss_weights": [9, 4], "ds_idx": 1},
    ]
    collate = PackCollator(dialect="veomni", padding=Padding(multiple_of=2))
    parts = [SlicingCollator(collate, HalfOfTheRow(rank))(samples) for rank in (0, 1)]
    assert [part["labels"].tolist() for part in parts] == [[[6, 7, -100]], [[9, -100, -100]]]
    assert [part["loss_weights"].tolist() for part in parts] == [[[0.5, 2, 0]], [[4, 0, 0]]]
    for part in parts:
        assert part["cu_seq_lens_q"].tolist() == [0, 3, 5, 6]
        assert int(part["tail_padding_length"]) == 1, "VeOmni's meter would count the padding as a sample"
        assert part["ds_idx"].tolist() == [4, 1]


def test_rows_that_do_not_divide_among_the_ranks_are_refused():
    """VeOmni pads them itself, and takes earlier padding for a sample."""
    for padding in (Padding(), Padding(to=11), Padding(multiple_of=3)):
        with pytest.raises(SettingsError, match=r"are cut for 2 ranks .* padding=Padding\(multiple_of=2\)"):
            SlicingCollator(PackCollator(dialect="veomni", padding=padding), HalfOfTheRow(0))
    SlicingCollator(PackCollator(dialect="veomni", pad_to=12), HalfOfTheRow(0))
    with pytest.raises(SettingsError, match='choose dialect="veomni"'):
        SlicingCollator(PackCollator(pad_to=12), HalfOfTheRow(0))


def test_samples_of_several_sources():
    """VeOmni's multi-source data sets put ds_idx and the source's name next to the tokens; its meter takes the first."""
    samples = [
        {"input_ids": torch.tensor([5, 6]), "labels": torch.tensor([5, 6]), "ds_idx": 2, "source_name": "books"},
        {"input_ids": torch.tensor([7]), "labels": torch.tensor([7]), "ds_idx": torch.tensor(0), "source_name": "code"},
    ]
    assert PackCollator(dialect="veomni")(samples)["ds_idx"].tolist() == [2, 0]


class Registry(dict):
    """As VeOmni's: ``register(name, function)`` replaces."""

    def register(self, name, function):
        self[name] = function


@pytest.fixture(params=["stand-in", "installed"])
def parallel(request, monkeypatch):
    """VeOmni with a parallel state that the test sets: the installed one, or the four names that are read."""
    state = SimpleNamespace(dp_size=1, dp_rank=0, sp_size=1, sp_rank=0, sp_enabled=False)
    if request.param == "installed":
        try:
            importlib.import_module("veomni.data.data_loader")
        except Exception as error:
            pytest.skip(f"veomni cannot be imported here: {error!r}")
    else:
        stand_ins: dict[str, dict[str, Any]] = {
            "veomni.data.dataset": {"DATASET_REGISTRY": Registry()},
            "veomni.data.data_loader": {"DATALOADER_REGISTRY": Registry()},
            "veomni.data.data_collator": {"SequenceParallelCollator": lambda: HalfOfTheRow(state.sp_rank)},
            "veomni.distributed.parallel_state": {},
        }
        for name, values in stand_ins.items():
            module = ModuleType(name)
            vars(module).update(values)
            monkeypatch.setitem(sys.modules, name, module)
    place = sys.modules["veomni.distributed.parallel_state"]
    monkeypatch.setattr(place, "get_parallel_state", lambda: state, raising=False)
    collators = sys.modules["veomni.data.data_collator"]
    monkeypatch.setattr(collators, "get_parallel_state", lambda: state, raising=False)
    return state


def built(path, *, global_batch_size, **settings):
    """What VeOmni's trainer builds by the two names, with the arguments that it gives."""
    datasets = sys.modules["veomni.data.dataset"].DATASET_REGISTRY
    loaders = sys.modules["veomni.data.data_loader"].DATALOADER_REGISTRY
    dataset = datasets["brimful"](train_path=str(path), transform=None, seed=0, max_seq_len=64, source_name=None)
    settings = {"micro_batch_size": 1, "dyn_bsz": False, "num_workers": 0, **settings}
    loader = loaders["brimful"](
        dataset=dataset, global_batch_size=global_batch_size, max_seq_len=64, train_steps=3, seed=0, save_steps=0,
        collate_fn=None, pin_memory=False, prefetch_factor=None, drop_last=True, **settings,
    )  # fmt: skip
    return dataset, loader


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    """Eleven packs, some of several samples."""
    path = tmp_path_factory.mktemp("veomni") / "packs"
    source, encoder = open_source([{"text": "a" * (5 + number)} for number in range(20)]), toy_chat_encoder()
    plan = plan_packs(measure_lengths(source, encoder), capacity=27)
    assert plan.num_packs == 11
    write_packs(plan, source, encoder, path)
    return path


def test_two_names_in_the_yaml_file_give_steps_of_packs(parallel, store):
    """A step is a list of micro-batches, and every rank has the steps that VeOmni computes from the length it divides."""
    install()
    packs, seen = PackedDataset(store), []
    for parallel.dp_rank in range(2):
        parallel.dp_size = 2
        dataset, loader = built(store, global_batch_size=4)
        steps = list(loader)
        assert len(dataset) // 2 == len(loader) == len(steps) == 2, "dataloader_batch_size is 4 packs over 2 ranks"
        assert [len(step) for step in steps] == [2, 2]
        for batch in (batch for step in steps for batch in step):
            edges = batch["cu_seq_lens_q"].tolist()
            seen += [batch["input_ids"][0, begin:end].tolist() for begin, end in pairwise(edges)]
    every = [pack.segment(place).tolist() for pack in packs for place in range(pack.num_segments)]
    assert len(seen) >= 8
    assert all(seen.count(segment) <= every.count(segment) for segment in seen)


def test_its_checkpoint_holds_the_place(parallel, store):
    """VeOmni loads the state, then says the epoch that has begun; an epoch that ends goes on to the next."""
    install()
    _, loader = built(store, global_batch_size=2)
    steps = iter(loader)
    next(steps), next(steps)
    state, rest = loader.state_dict(), list(steps)
    _, resumed = built(store, global_batch_size=2)
    resumed.load_state_dict(state)
    resumed.set_epoch(0)
    assert ids(resumed) == ids(rest)
    assert ids(resumed) == ids(loader), "both are in epoch 1 now"


def ids(steps):
    return [[batch["input_ids"].tolist() for batch in step] for step in steps]


def test_workers_and_packs_of_a_micro_batch(parallel, store):
    install()
    _, alone = built(store, global_batch_size=4, micro_batch_size=2)
    _, workers = built(store, global_batch_size=4, micro_batch_size=2, num_workers=2)
    assert ids(workers) == ids(alone)
    assert len(next(iter(alone))) == 2


def test_rows_of_sequence_parallelism(parallel, store):
    """Rows divide among the ranks, and each gets its part with the boundaries of the whole."""
    install()
    parallel.sp_size, parallel.sp_enabled = 2, True
    halves = []
    for parallel.sp_rank in range(2):
        _, loader = built(store, global_batch_size=1)
        halves.append(next(iter(loader))[0])
    assert halves[0]["input_ids"].shape == halves[1]["input_ids"].shape
    (whole,) = {half["cu_seq_lens_q"].tolist()[-1] for half in halves}
    assert whole == 2 * halves[0]["input_ids"].shape[1]


def test_a_collator_of_your_own(parallel, store):
    install(PackCollator(dialect="veomni", pad_to=64))
    _, loader = built(store, global_batch_size=1)
    assert next(iter(loader))[0]["input_ids"].shape == (1, 64)


def test_settings_of_veomni_that_contradict_packs(parallel, store):
    """``dyn_bsz`` is VeOmni's default: its steps would be of tokens that packs do not count."""
    install()
    with pytest.raises(SettingsError, match=r"set train\.dyn_bsz: false$"):
        built(store, global_batch_size=1, dyn_bsz=True)
    loaders = sys.modules["veomni.data.data_loader"].DATALOADER_REGISTRY
    with pytest.raises(SettingsError, match=r"set data\.datasets_type: brimful$"):
        loaders["brimful"](dataset=[1], dyn_bsz=False, seed=0)
