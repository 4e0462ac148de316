"""Window and token-budget batches in PyTorch's own loaders: each micro-batch comes once, whatever the number of workers."""

import copy
import pickle

import pytest

from brimful import PackCollator, TokenBudgetBatches
from brimful.dynamic import TokenBudget, Window, WindowBatches
from brimful.errors import SettingsError
from brimful.testing.toys import toy_pack

torch = pytest.importorskip("torch", reason="loaders of PyTorch")

LENGTHS = [7, 6, 4, 2, 5, 3, 9, 1, 8, 4, 6, 2]


def samples():
    return [{"input_ids": [number + 1] * length} for number, length in enumerate(LENGTHS)]


def loaded(batches, num_workers=0):
    loader = torch.utils.data.DataLoader(batches, batch_size=None, num_workers=num_workers, collate_fn=list)
    return [[pack.sample_ids.tolist() for pack in batch] for batch in loader]


@pytest.mark.parametrize("num_workers", [0, 1, 2])
def test_samples_by_index_come_once_and_in_order(num_workers):
    batches = WindowBatches(samples(), Window(10, size=6), lengths=LENGTHS)
    assert isinstance(batches, torch.utils.data.IterableDataset)
    expected = [[pack.sample_ids.tolist() for pack in batch] for batch in copy.copy(batches)]
    got = loaded(WindowBatches(samples(), Window(10, size=6), lengths=LENGTHS), num_workers)
    assert got == expected
    assert sorted(number for batch in got for pack in batch for number in pack) == list(range(12))


def test_an_epoch_that_was_set_is_served_by_workers():
    batches = TokenBudgetBatches(samples(), TokenBudget(10), lengths=LENGTHS)
    first = loaded(batches, 2)
    batches.set_epoch(1)
    second = loaded(batches, 2)
    assert first != second
    batches = TokenBudgetBatches(samples(), TokenBudget(10), lengths=LENGTHS)
    assert [loaded(batches), loaded(batches)] == [first, second]


def test_a_stream_goes_into_one_worker():
    """Two would each read all of it, or half, by the stream: nothing tells."""
    stream = [toy_pack([length], first_sample=number) for number, length in enumerate(LENGTHS)]
    assert loaded(WindowBatches(stream, Window(10, size=4)), 1) == loaded(WindowBatches(stream, Window(10, size=4)))
    with pytest.raises(SettingsError, match="has one position, and workers need one each"):
        loaded(WindowBatches(stream, Window(10, size=4)), 2)


class Shared(torch.utils.data.IterableDataset):  # type: ignore[name-defined]
    """An iterable data set that takes its share in each worker."""

    def __iter__(self):
        worker = torch.utils.data.get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        return iter(samples()[number::count])


def test_a_stream_has_workers_of_its_own():
    """The way out that the refusal names: the samples come once, and each worker has encoded its share."""
    stream = torch.utils.data.DataLoader(Shared(), batch_size=None, num_workers=2, collate_fn=dict)
    packs = [pack for batch in WindowBatches(stream, Window(10, size=4)) for pack in batch]
    tokens = [int(token) for pack in packs for token in pack.input_ids[pack.cu_seqlens[:-1]]]
    assert sorted(tokens) == list(range(1, 13))


def test_copies_are_of_the_same_class():
    batches = WindowBatches(samples(), Window(10, size=6), lengths=LENGTHS)
    again = pickle.loads(pickle.dumps(batches))
    assert type(again) is type(batches.fork()) is type(batches)
    assert repr(again) == repr(batches)


def test_a_collator_joins_the_packs_of_an_item():
    """As Trainer batches items of a data set: lists of packs in a list."""
    loader = torch.utils.data.DataLoader(
        WindowBatches(samples(), Window(10, size=6), lengths=LENGTHS), batch_size=1, collate_fn=PackCollator()
    )
    assert sum(batch["input_ids"].numel() for batch in loader) == sum(LENGTHS)
