"""Plans as preset packs of xtuner v1, read by its own class if installed, and by a reading of its source."""

import importlib
import json
from types import ModuleType

import numpy as np
import pytest

from brimful import CostModel, plan_packs
from brimful.errors import LengthChangedError, PlanMismatchError, SettingsError
from brimful.integrations.trainers.xtuner import install, preset_lengths, write_preset


class Lines:
    """What is read of xtuner's ``JsonlDataset``: a sample for each line, with its own numbers."""

    disable_filter = True

    def __init__(self, path, counts, first=0):
        self.path, self.num_tokens = path, np.array(counts)
        self._first = first

    def __len__(self):
        return len(self.num_tokens)

    def __getitem__(self, line):
        ids = [1000 * (self._first + line) + place for place in range(self.num_tokens[line])]
        return {"input_ids": ids, "labels": ids, "num_tokens": len(ids)}


def data_sets(first=(3, 3, 5), second=(6, 0, 1, 1)):
    return [Lines("data/a.jsonl", first), Lines("data/b.jsonl", second, first=len(first))]


class ReadPreset:
    """Packs as the source of ``PresetPackDataset`` (xtuner, August 2026) finds them: slices of samples, file by file."""

    def __init__(self, datasets, directory, capacity, short_pack_strategy="error"):
        self.rows, self.edges = np.load(f"{directory}/samples.npy"), np.load(f"{directory}/boundaries.npy")
        assert (self.rows.dtype, self.rows.shape[1], self.edges.dtype) == (np.int64, 6, np.int64)
        assert (self.rows[:, 2:4] == -1).all()
        assert self.edges[-1] == len(self.rows)
        with open(f"{directory}/paths.json") as file:
            self.files = [{dataset.path: dataset for dataset in datasets}[path] for path in json.load(file)]
        totals = np.add.reduceat(self.rows[:, 5] - self.rows[:, 4], self.edges[:-1])
        if short_pack_strategy == "error" and (totals < capacity).any():
            raise ValueError("total tokens < pack_max_length")
        self.pad = short_pack_strategy == "padding"
        self.capacity = capacity

    def __len__(self):
        return len(self.edges) - 1

    def __getitem__(self, number):
        items = []
        for file, line, _, _, begin, end in self.rows[self.edges[number] : self.edges[number + 1]]:
            ids = self.files[file][line]["input_ids"][begin:end]
            items.append({"input_ids": ids, "labels": ids, "num_tokens": end - begin})
        rest = self.capacity - sum(item["num_tokens"] for item in items)
        padding = {"input_ids": [0] * rest, "labels": [-100] * rest, "num_tokens": rest}
        return [*items, *([padding] if rest and self.pad else [])]


@pytest.fixture(params=["read", "installed"])
def packs_class(request, monkeypatch):
    """xtuner's class after ``install``."""
    name = "xtuner.v1.datasets.preset_pack"
    if request.param == "read":
        module = ModuleType(name)
        vars(module).update(PresetPackDataset=type("PresetPackDataset", (ReadPreset,), {}))
        monkeypatch.setitem(importlib.import_module("sys").modules, name, module)
    else:
        try:
            module = importlib.import_module(name)
        except Exception as error:
            pytest.skip(f"xtuner v1 cannot be imported here: {error!r}")
        monkeypatch.setattr(module.PresetPackDataset, "__init__", module.PresetPackDataset.__init__)
    with pytest.raises(ValueError, match="< pack_max_length"):
        write_and_read(module.PresetPackDataset, request.getfixturevalue("tmp_path"))
    install()
    return module.PresetPackDataset


def write_and_read(packs_class, directory, capacity=7):
    datasets = data_sets()
    plan = plan_packs(preset_lengths(datasets), capacity=capacity, seed=None)
    write_preset(plan, datasets, directory)
    return plan, packs_class(datasets, str(directory), capacity)


def test_its_class_reads_the_packs_of_the_plan(packs_class, tmp_path):
    """Every sample by file and line, whole; the damaged line in none; the rest of a row is padding without labels."""
    plan, packs = write_and_read(packs_class, tmp_path)
    assert len(packs) == plan.num_packs == 3
    for number in range(3):
        *items, last = packs[number]
        whole = [segment.sample_id for segment in plan.pack(number)]
        if last["labels"][0] == -100:
            assert last["input_ids"] == [0] * last["num_tokens"]
        else:
            items.append(last)
        assert [item["input_ids"][0] // 1000 for item in items] == whole
        assert [item["num_tokens"] for item in items] == [segment.length for segment in plan.pack(number)]
        assert sum(item["num_tokens"] for item in packs[number]) == 7
    assert 4 not in plan.sample_ids, "the line that xtuner counts as 0 tokens"


def test_orders_of_epochs_and_ranks(tmp_path):
    """Rank r of n takes every n-th pack from the r-th on; with costs, packs trained together cost alike."""
    lengths = [8, 2] * 8
    datasets = [Lines("a.jsonl", lengths)]
    plan = plan_packs(preset_lengths(datasets), capacity=8, algorithm="next_fit", seed=None)
    costs = plan.costs(CostModel(linear=1, quadratic=0))
    assert sorted(set(costs.tolist())) == [2, 8]
    write_preset(plan, datasets, tmp_path, dp_world_size=2, epochs=2, costs=costs)
    order = np.load(tmp_path / "order.npy")
    assert (order.dtype, order.shape) == (np.int64, (32,))
    for epoch in order.reshape(2, 16):
        assert sorted(epoch.tolist()) == list(range(16))
        assert (costs[epoch[0::2]] == costs[epoch[1::2]]).all()
    assert order[:16].tolist() != order[16:].tolist()
    write_preset(plan, datasets, tmp_path, seed=None)
    assert np.load(tmp_path / "order.npy").tolist() == list(range(16))


def test_a_sample_that_xtuner_encodes_otherwise_is_named(tmp_path):
    """Its reader would cut the row at another place, and say nothing."""
    plan = plan_packs([3, 3, 5, 6, 2, 1, 1], capacity=7)
    with pytest.raises(LengthChangedError, match=r"^data/b.jsonl:1 \(sample 3\) encodes to 4 tokens .* with 6"):
        write_preset(plan, data_sets(second=(4, 2, 1, 1)), tmp_path)
    with pytest.raises(LengthChangedError, match=r"^data/b.jsonl:2 \(sample 4\) encodes to 3 tokens .* with 2"):
        write_preset(plan, data_sets(second=(6, 3, 1, 1)), tmp_path)
    with pytest.raises(PlanMismatchError, match="the plan is of 7 samples and the data sets have 3"):
        write_preset(plan, data_sets(second=())[:1], tmp_path)


def test_plans_and_data_sets_that_a_preset_cannot_say(tmp_path):
    datasets = data_sets()
    lengths = preset_lengths(datasets)
    with pytest.raises(SettingsError, match=r'takes each segment for a whole sample.*overflow="drop"'):
        write_preset(plan_packs(lengths, capacity=4, overflow="split"), datasets, tmp_path)
    write_preset(plan_packs(lengths, capacity=4, overflow="truncate"), datasets, tmp_path)
    datasets[1].disable_filter = False
    with pytest.raises(SettingsError, match=r"^data/b.jsonl: its samples are not its lines.*disable_filter=True"):
        preset_lengths(datasets)
    with pytest.raises(SettingsError, match=r"^a.jsonl is in two data sets"):
        preset_lengths([Lines("a.jsonl", [1]), Lines("a.jsonl", [1])])
