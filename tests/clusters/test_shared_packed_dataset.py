"""Packs of a shared plan in loaders: they follow the epoch, in workers too, and states outlive it."""

from __future__ import annotations

import os
import pickle
from typing import Any

import pytest

from brimful import PackedDataset, PackLoader, PlanSettings
from brimful.base.progress import Progress
from brimful.clusters import SharedPackedDataset, shared_plan
from brimful.clusters.epoch_plans import Builder
from brimful.errors import SettingsError
from brimful.testing.toys import toy_chat_encoder

CHATS = [{"prompt": f"{number}+{number}?", "completion": str(2 * number)} for number in range(40)]


@pytest.fixture
def shared(tmp_path):
    settings = PlanSettings(capacity=64)
    with shared_plan(CHATS, toy_chat_encoder(), settings, directory=tmp_path, ahead=False, progress=Progress()) as plan:
        yield plan


def ids_of(packs):
    return [pack.sample_ids.tolist() for pack in packs]


def planned(shared):
    return [[segment.sample_id for segment in pack] for pack in shared.plan]


def first_of(packs):
    return packs[0]


def test_it_serves_the_packs_of_the_plan_of_each_epoch(shared):
    """Without it the loader would go through the packs of epoch 0 for ever."""
    dataset = shared.dataset()
    expected = PackedDataset.from_plan(CHATS, toy_chat_encoder(), shared.plan)
    assert [pack.input_ids.tolist() for pack in dataset] == [pack.input_ids.tolist() for pack in expected]
    first = planned(shared)
    dataset.set_epoch(1)
    assert dataset.epoch == shared.epoch == 1
    assert ids_of(dataset) == planned(shared) != first
    assert ids_of(dataset.__getitems__([2, 0])) == [planned(shared)[2], planned(shared)[0]]


def test_facts_are_of_all_epochs(shared):
    """Without it a state of other data is told that its epoch is a reason too."""
    dataset = shared.dataset()
    facts = dataset.facts
    dataset.set_epoch(1)
    assert dataset.facts == facts
    of_epoch = PackedDataset.from_plan(CHATS, toy_chat_encoder(), shared.plan).facts
    assert facts.keys() == of_epoch.keys() - {"epoch"} < of_epoch.keys()
    dataset.set_epoch(0)
    assert (dataset.epoch, ids_of(dataset)) == (0, planned(shared))


def test_a_folder_may_have_spaces_and_one_epoch_has_no_next(tmp_path, monkeypatch):
    """The path of a plan is told to workers after the epoch, with a space between."""
    prepared = []
    monkeypatch.setattr(Builder, "prepare", lambda self, epoch: prepared.append(epoch))
    cases: list[tuple[dict[str, Any], list[int]]] = [
        ({"num_epochs": 1}, []),
        ({"num_epochs": 2}, [1]),
        ({}, [1]),
        ({"epoch": 3, "num_epochs": 5}, [4]),
        *[({"epoch": epoch, "num_epochs": 5}, []) for epoch in (4, 7)],
        ({"replan": False}, []),
        ({"ahead": False}, []),
    ]
    for options, expected in cases:
        settings = PlanSettings(capacity=64)
        options = {"directory": tmp_path / "a b c", "progress": Progress(), **options}
        with shared_plan(CHATS, toy_chat_encoder(), settings, **options) as shared:
            assert ids_of(shared.dataset()) == planned(shared)
        assert prepared == expected, options
        prepared.clear()
    for name, value in (("num_epochs", 0), ("epoch", -1)):
        wrong: dict[str, Any] = {"directory": tmp_path, "progress": Progress(), name: value}
        with pytest.raises(SettingsError, match=name):
            shared_plan(CHATS, toy_chat_encoder(), settings, **wrong)


def test_a_loader_moves_on_to_the_plan_of_the_next_epoch(shared):
    """``PackLoader`` is asked for by Lightning and torchtitan: they never call ``set_epoch`` of the data set."""
    loader = PackLoader(shared.dataset(), first_of, seed=None)
    for epoch in range(3):
        served = ids_of(loader)
        assert shared.epoch == epoch
        assert served == planned(shared)


def test_a_state_goes_on_in_the_plan_of_its_epoch(shared, tmp_path):
    """A loader begins with epoch 0; its state may be of epoch 2, whose packs are others."""
    loader = PackLoader(shared.dataset(), first_of)
    whole = [ids_of(loader) for _ in range(3)]
    stopped = PackLoader(shared.dataset(), first_of)
    stopped.set_epoch(2)
    batches = iter(stopped)
    head = ids_of(next(batches) for _ in range(4))
    state = stopped.state_dict()
    with shared_plan(
        CHATS, toy_chat_encoder(), PlanSettings(capacity=64), directory=tmp_path, ahead=False, progress=Progress()
    ) as later:
        resumed = PackLoader(later.dataset(), first_of)
        resumed.load_state_dict(state)
        assert head + ids_of(resumed) == whole[2]


def test_costs_of_one_epoch_are_refused_for_packs_of_all(shared):
    """They would balance ranks by the costs of packs that are gone."""
    with pytest.raises(SettingsError, match="replan=False"):
        PackLoader(shared.dataset(), first_of, costs=[1.0] * len(shared.plan))


def test_a_copy_has_no_threads_and_no_arrays(shared, monkeypatch):
    """A plan of gigabytes is opened by its path; a worker cannot plan."""
    dataset = shared.dataset()
    data = pickle.dumps(dataset)
    copy = pickle.loads(data)
    assert ids_of(copy) == planned(shared)
    assert copy.fingerprint == dataset.fingerprint
    copy.set_epoch(0)  # which it serves
    with pytest.raises(SettingsError, match="belongs to the process that made it"):
        copy.set_epoch(1)
    for pid in (os.getpid() - 1, os.getpid() + 1):
        monkeypatch.setattr(dataset, "_pid", pid)
        with pytest.raises(SettingsError, match="serves epoch 0: set_epoch belongs to the process"):
            dataset.set_epoch(1)


@pytest.mark.parametrize("method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_persistent_workers_see_the_plan_of_the_epoch(shared, method):
    """They hold a copy of the data set from before: samples would be trained twice, and others never."""
    torch_data = pytest.importorskip("torch.utils.data")
    dataset = SharedPackedDataset(CHATS, toy_chat_encoder(), shared)
    loader = torch_data.DataLoader(
        dataset, batch_size=None, num_workers=1, persistent_workers=True, multiprocessing_context=method
    )
    for epoch in range(2):
        dataset.set_epoch(epoch)
        assert ids_of(loader) == planned(shared)
