"""Loaders whose batches workers make: what the training process counts, and where an iteration goes on."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from brimful import PackLoader  # noqa: E402
from brimful.errors import SettingsError, WrongTypeError  # noqa: E402
from brimful.serve.worker_loader import LoaderDataset, WorkerLoader  # noqa: E402
from brimful.testing.toys import toy_packs  # noqa: E402


def loader_of(count=5, **options):
    return PackLoader(toy_packs(count), **{"seed": None, **options})


def ids(batches):
    return [batch[0].sample_ids.tolist()[0] for batch in batches]


def test_the_state_follows_what_was_delivered():
    """Counted up and down again, over the end of an epoch: what workers have made ahead does not count."""
    dataset = LoaderDataset(loader_of())
    places = [(state["epoch"], state["step"]) for state in map(dataset.state_after, (0, 3, 5, 1, 4, 6))]
    assert places == [(0, 0), (0, 3), (1, 0), (0, 1), (0, 4), (1, 1)]
    with pytest.raises(SettingsError, match="micro_batches must be a whole number of at least 0"):
        dataset.state_after(-1)


def test_a_stream_that_ends_has_no_state_behind_its_end(tmp_path):
    from brimful.stream import StreamLoader
    from brimful.testing.toys import toy_stream

    dataset = LoaderDataset(StreamLoader(toy_stream(tmp_path, [2, 1])))
    assert dataset.state_after(3)["step"] == 3
    with pytest.raises(SettingsError, match="micro_batches is 4 and the loader ends after 3"):
        dataset.state_after(4)


def test_an_epoch_that_is_set_begins_at_its_beginning():
    dataset = LoaderDataset(loader_of())
    assert len(dataset) == 5
    dataset.load_state_dict(dataset.state_after(2))
    dataset.set_epoch(0)
    assert ids(dataset) == [2, 3, 4], "within that epoch: nothing is served twice"
    dataset.set_epoch(3)
    assert (ids(dataset), dataset.state_after(1)["epoch"]) == ([0, 1, 2, 3, 4], 3)


def test_a_worker_goes_on_with_the_next_epoch(monkeypatch):
    """A persistent one is asked again, and hears nothing of it; each serves its turns alone."""
    info = SimpleNamespace(id=1, num_workers=2)
    monkeypatch.setattr(torch.utils.data, "get_worker_info", lambda: info)
    loader = PackLoader(toy_packs(5))
    epochs = [ids(loader) for _ in range(3)]
    dataset = LoaderDataset(loader_of(seed=0))
    batches: Any = iter(dataset)
    assert iter(batches) is batches
    assert ids(batches) == epochs[0][1::2]
    next(iter(dataset))
    assert ids(dataset) == epochs[2][1::2], "also after one that was abandoned"
    with pytest.raises(SettingsError, match="LoaderDataset has no state of one worker"):
        dataset.state_dict()


def test_an_iteration_ends_where_another_begins():
    """A loader with a state from the middle of an epoch must not go on with batches of before."""
    loader = WorkerLoader(loader_of(), num_workers=0)
    assert len(loader) == 5
    batches = iter(loader)
    assert ids([next(batches), next(batches)]) == [0, 1]
    state = loader.state_dict()
    assert ids([next(batches)]) == [2]
    loader.load_state_dict(state)
    assert list(batches) == []
    again = iter(loader)
    assert ids([next(again)]) == [2]
    later = iter(loader)
    assert ids([next(later)]) == [3]
    assert list(again) == []
    loader.set_epoch(0)
    assert ids(later) == [4]
    assert loader.state_dict()["epoch"] == 1
    loader.set_epoch(4)
    assert (loader.state_dict()["epoch"], ids(loader), loader.state_dict()["epoch"]) == (4, [0, 1, 2, 3, 4], 5)


def test_options_of_the_loader_of_pytorch():
    loader = WorkerLoader(loader_of(), num_workers=0, data_loader={"collate_fn": len})
    assert list(loader) == [1] * 5
    with pytest.raises(SettingsError, match="num_workers must be a whole number of at least 0"):
        WorkerLoader(loader_of(), num_workers=-1)


def test_a_collator_is_a_function():
    with pytest.raises(WrongTypeError, match="collate_fn must be a function of a list of packs"):
        PackLoader(toy_packs(2), "collate")  # type: ignore[arg-type]
    with pytest.raises(WrongTypeError, match="dataset must be a PackedDataset or a PackStore"):
        PackLoader(iter(toy_packs(2)))  # type: ignore[arg-type]
