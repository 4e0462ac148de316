"""Loaders in the workers of PyTorch: each worker makes every n-th micro-batch of its rank, and the state is of what was delivered."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import torch.utils.data

from brimful.checks import check_type, whole_number
from brimful.errors import SettingsError
from brimful.serve.rank_loader import RankLoader

__all__ = ["LoaderDataset", "WorkerLoader"]


class LoaderDataset(torch.utils.data.IterableDataset[Any]):
    """Micro-batches of a loader for ``DataLoader(dataset, batch_size=None, num_workers=n)``.

    They are those of the loader, in its order, for every number of workers: worker ``w`` of ``n`` makes micro-batches
    ``w``, ``w + n``, …, and the ``DataLoader`` takes one from each in turn. All workers go through the order of the rank;
    only the maker of a batch reads or encodes its packs.

    Each iteration begins where the loader stood when the data set was made, or at the state that was loaded; behind its
    end the next one begins the next epoch, where this process or a persistent worker saw the end. Else call ``set_epoch``.

    Args:
        loader: a ``PackLoader``, ``StreamLoader``, or loader of composed micro-batches from samples by index.

    Raises:
        SettingsError: a loader of samples that come as a stream, or that asks the other ranks in each step.

    >>> from brimful import PackLoader
    >>> from brimful.testing.toys import toy_packs
    >>> dataset = LoaderDataset(PackLoader(toy_packs(3), seed=None))
    >>> batches = torch.utils.data.DataLoader(dataset, batch_size=None)
    >>> [pack.sample_ids.tolist() for pack, in batches]
    [[0], [1], [2]]
    >>> dataset.load_state_dict(dataset.state_after(2))
    """

    def __init__(self, loader: RankLoader) -> None:
        super().__init__()
        check_type("loader", loader, RankLoader, "a loader of brimful", "packs by index go to DataLoader themselves")
        # It makes no batch: it follows what the DataLoader has given out, as far as ``state_after`` was asked.
        self._loader = loader.fork()
        self._num_followed = 0
        self._begin = self._loader.state_dict()

    def __iter__(self) -> Iterator[Any]:
        loader = self._loader.fork()
        loader.load_state_dict(self._begin)
        worker = torch.utils.data.get_worker_info()
        if worker is None:
            return _WorkerBatches(loader, 0, 1)
        # A persistent worker is asked again for the next epoch, and hears nothing of it.
        return _WorkerBatches(loader, worker.id, worker.num_workers, at_end=self._begin_at)

    def __len__(self) -> int:
        """Return the micro-batches of a whole epoch on this rank; of loaders that know it."""
        return len(self._loader)  # type: ignore[arg-type]

    def prepare(self) -> None:
        """Make what all workers need, before they are forked."""
        self._begin_at(self._begin)
        self._loader.prepare()

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration serve an epoch from its beginning, unless it begins within that one already."""
        if epoch != self._begin["epoch"]:
            self._begin_at(self._begin)
            self._loader.begin_epoch(epoch)
            self._begin = self._loader.state_dict()

    def state_after(self, micro_batches: int) -> dict[str, Any]:
        """Return the state behind so many micro-batches of this rank that were trained, since the iteration began.

        The training process counts them: what workers have prefetched is not lost then. The loader itself takes it too.
        Composed micro-batches are composed once more for it, in this process, from the last time on.

        Args:
            micro_batches: that the ``DataLoader`` has given out.
        """
        count = whole_number("micro_batches", micro_batches, minimum=0)
        if count < self._num_followed:
            self._begin_at(self._begin)
        while self._num_followed < count:
            # The end of an epoch belongs to it: the loader goes on to the next by itself.
            if self._loader.next_request() is None and self._loader.next_request() is None:
                raise SettingsError(f"micro_batches is {count:,} and the loader ends after {self._num_followed:,}")
            self._loader.advance()
            self._num_followed += 1
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration at a state, of this data set or of the loader.

        Raises:
            StateError: as of the loader.
        """
        self._begin_at(dict(state))

    def _begin_at(self, state: dict[str, Any]) -> None:
        self._loader.load_state_dict(state)
        self._num_followed = 0
        self._begin = self._loader.state_dict()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._loader!r})"


class _WorkerBatches:
    """Iterator of one worker."""

    def __init__(
        self,
        loader: RankLoader,
        worker_id: int,
        num_workers: int,
        at_end: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self._loader, self._num_workers, self._at_end = loader, num_workers, at_end
        self._num_passed = worker_id  # micro-batches of other workers before the next of this one
        self._epoch = loader.epoch
        self._is_ended = False

    def __iter__(self) -> _WorkerBatches:
        return self

    def __next__(self) -> Any:
        while not self._is_ended and (request := self._loader.next_request()) is not None:
            is_own = not self._num_passed
            batch = self._loader.make_batch(request) if is_own else None
            self._num_passed = self._num_workers - 1 if is_own else self._num_passed - 1
            self._is_ended = self._loader.advance()
            if is_own:
                return batch
        self._is_ended = True
        if self._at_end is not None and self._loader.epoch != self._epoch:
            self._at_end(self._loader.state_dict())
        raise StopIteration

    def state_dict(self) -> dict[str, Any]:
        """Refuse ``StatefulDataLoader``, which would keep a state of each worker that no other number of them can take up.

        Raises:
            SettingsError: always.
        """
        raise SettingsError(
            "LoaderDataset has no state of one worker: in StatefulDataLoader pass sampler=RequestSampler(loader) of "
            "brimful.serve.request_sampler with its dataset, or take WorkerLoader(loader, num_workers=n)"
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Refuse a state of one worker, as ``state_dict`` does."""
        self.state_dict()


class WorkerLoader:
    """A loader whose batches are made by worker processes, with the state of what was delivered.

    Iterating serves one epoch, or the remainder of it, as the loader does. A state may be loaded at any time, also by another
    number of workers; batches that workers have made ahead are thrown away then.

    Args:
        loader: as of ``LoaderDataset``.
        num_workers: processes; 0 makes batches in this one.
        data_loader: further arguments of ``torch.utils.data.DataLoader``, such as ``pin_memory``.

    >>> from brimful import PackLoader
    >>> from brimful.testing.toys import toy_packs
    >>> loader = WorkerLoader(PackLoader(toy_packs(3), seed=None), num_workers=0)
    >>> batches = iter(loader)
    >>> next(batches)[0].sample_ids.tolist(), loader.state_dict()["step"]
    ([0], 1)
    """

    def __init__(self, loader: RankLoader, *, num_workers: int, data_loader: Mapping[str, Any] | None = None) -> None:
        self._num_workers = whole_number("num_workers", num_workers, minimum=0)
        self._data_loader = dict(data_loader or {})
        self._dataset = LoaderDataset(loader)
        self._num_delivered = 0
        self._iteration = 0

    def __iter__(self) -> Iterator[Any]:
        self._dataset.load_state_dict(self.state_dict())
        self._num_delivered = 0
        self._iteration += 1
        iteration = self._iteration
        # Forked workers share what is made before.
        self._dataset.prepare()
        for batch in self._batches():
            # Counted before it leaves: a state saved while it trains has the next batch next.
            self._num_delivered += 1
            yield batch
            if self._iteration != iteration:
                return  # a state was loaded, or another iteration has begun

    def _batches(self) -> Iterable[Any]:
        return torch.utils.data.DataLoader(
            self._dataset,
            batch_size=None,
            num_workers=self._num_workers,
            # PyTorch's own would make tensors of all arrays in it.
            **{"collate_fn": _as_it_is, **self._data_loader},
        )

    def __len__(self) -> int:
        """Return the micro-batches of a whole epoch on this rank; of loaders that know it."""
        return len(self._dataset)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless it is the one being served."""
        if epoch != self.state_dict()["epoch"]:
            self._restart()
            self._dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader behind the batches that were delivered."""
        return self._dataset.state_after(self._num_delivered)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a state; an iteration that is under way ends.

        Raises:
            StateError: as of the loader.
        """
        self._dataset.load_state_dict(state)
        self._restart()

    def _restart(self) -> None:
        self._num_delivered = 0
        self._iteration += 1

    def __repr__(self) -> str:
        return f"WorkerLoader({self._dataset!r}, num_workers {self._num_workers})"


def _as_it_is(batch: Any) -> Any:
    return batch
