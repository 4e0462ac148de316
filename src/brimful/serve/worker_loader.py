"""Loaders in PyTorch workers: each makes every n-th micro-batch of its rank; the state counts
delivered batches.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data

from brimful.base.checks import check_type, whole_number
from brimful.errors import SettingsError
from brimful.serve.loader import RankLoader
from brimful.serve.order import Order
from brimful.serve.worker_news import WorkerNews


class FollowedLoader:
    """Order of a loader that is followed without making batches, from the position where the next
    iteration begins.

    Args:
        loader: a loader of brimful; it keeps its own position.
    """

    def __init__(self, loader: RankLoader[Any]) -> None:
        check_type(
            "loader",
            loader,
            RankLoader,
            "a loader of brimful",
            "packs by index go to DataLoader themselves",
        )
        self._loader = loader.fork()
        self._start_state = self._loader.state_dict()

    def __len__(self) -> int:
        """Return the number of micro-batches of a whole epoch on this rank, if the loader knows
        it.
        """
        return len(self._loader)  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration serve an epoch from its beginning, unless it already begins within
        that epoch.
        """
        if epoch != self._start_state["epoch"]:
            self._loader.start_epoch(epoch)
            self._start_at(self._loader.state_dict())

    def _start_at(self, state: Mapping[str, Any]) -> None:
        """Let the next iteration begin at a state."""
        self._loader.load_state_dict(state)
        self._start_state = self._loader.state_dict()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._loader!r})"


class LoaderDataset(FollowedLoader, torch.utils.data.IterableDataset[Any]):
    """Micro-batches of a loader for ``DataLoader(dataset, batch_size=None, num_workers=n)``.

    They equal the micro-batches of the loader, in its order, for every number of workers: worker
    ``w`` of ``n`` makes micro-batches ``w``, ``w + n``, …, and the ``DataLoader`` takes one from
    each in turn. All workers go through the order of the rank; only the worker that makes a batch
    reads or encodes its packs.

    Each iteration begins at the position that the loader had when the data set was made, or at the
    loaded state: call ``set_epoch`` before each epoch. Workers that stay
    (``persistent_workers=True``) follow it; if it is never called, each iteration serves the next
    epoch. After ``load_state_dict`` they refuse to go on: make a new ``DataLoader``.

    Args:
        loader: a ``PackLoader``, a ``StreamLoader``, or a loader of composed micro-batches from
            samples by index.
        news: what workers that stay are told; only a loader that makes this data set in a worker
            gives it.

    Raises:
        SettingsError: a loader of composed micro-batches from a stream, or a loader that asks the
            other ranks in each step; at an iteration, workers that stay after a state was loaded.

    >>> from brimful import PackLoader
    >>> from brimful.testing.toys import toy_packs
    >>> dataset = LoaderDataset(PackLoader(toy_packs(3), seed=None))
    >>> batches = torch.utils.data.DataLoader(dataset, batch_size=None)
    >>> [pack.sample_ids.tolist() for pack, in batches]
    [[0], [1], [2]]
    >>> dataset.load_state_dict(dataset.state_after(2))
    """

    _num_passed = 0
    """Delivered micro-batches that the loader has passed, up to the last ``state_after``."""

    _stays = False
    """True in a worker that has begun an iteration."""

    def __init__(self, loader: RankLoader[Any], news: WorkerNews | None = None) -> None:
        super().__init__(loader)
        self._news = news or WorkerNews()

    def __iter__(self) -> Iterator[Any]:
        return self._batches(self._start_state, torch.utils.data.get_worker_info())

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration serve an epoch from its beginning, unless it already begins within
        that epoch; in workers that stay too.
        """
        self._leave_for(epoch)
        self._start_packs()
        self._news.publish(self._start_state["epoch"], self._loader.order.step)

    def _leave_for(self, epoch: int, step: int | None = None) -> None:
        if epoch != self._start_state["epoch"]:
            # From where the last iteration began: what ``state_after`` has passed does not matter.
            self._start_at(self._start_state)
            order = self._loader.order
            if step is not None:
                order.step = step
            elif self._news.is_served:
                order.finish_epoch()
            super().set_epoch(epoch)

    def _start_packs(self) -> None:
        # Packs that are planned again for each epoch go there in the training process.
        if hasattr(self._loader.dataset, "set_epoch"):
            self._loader.dataset.set_epoch(self._start_state["epoch"])

    def _batches(self, start: Mapping[str, Any], worker: Any) -> Iterator[Any]:
        """Serve the micro-batches of one worker; all, if there is none."""
        if worker is not None:
            # Not in ``__iter__``, where an error ends a worker that stays without a word.
            update = self._news.receive() or (start["epoch"] + 1, None)
            if self._stays:
                self._leave_for(*update)
            self._stays, start = True, self._start_state
        order = self._loader.order.fork()
        order.load_state_dict(start)
        worker_index, num_workers = (0, 1) if worker is None else (worker.id, worker.num_workers)
        for turn in itertools.cycle(range(num_workers)):
            request = order.next_request()
            if request is None:
                break
            batch = self._loader.make_batch(request) if turn == worker_index else None
            is_last = order.advance()
            if turn == worker_index:
                yield batch
            if is_last:
                break

    def prepare(self) -> None:
        """Make what all workers need before they are forked."""
        self._start_at(self._start_state)
        self._loader.order.prepare()

    def state_after(self, micro_batches: int) -> dict[str, Any]:
        """Return the state after ``micro_batches`` trained micro-batches of this rank since the
        iteration began.

        The training process counts them, so batches that workers have prefetched are not lost. The
        loader itself accepts the state too. Composed micro-batches are composed again for it in
        this process, starting from the last call.

        Args:
            micro_batches: number of micro-batches that the ``DataLoader`` has delivered.
        """
        count = whole_number("micro_batches", micro_batches, minimum=0)
        order: Order = self._loader.order
        if count < self._num_passed:
            self._start_at(self._start_state)
        while self._num_passed < count:
            # At the end of an epoch the loader moves to the next one automatically.
            if order.next_request() is None and order.next_request() is None:
                raise SettingsError(
                    f"micro_batches is {count:,} and the loader ends after {self._num_passed:,}"
                )
            order.advance()
            self._num_passed += 1
        return order.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Refuse ``StatefulDataLoader``: its states of single workers do not fit another number of
        workers.

        Raises:
            SettingsError: always.
        """
        raise SettingsError(
            "LoaderDataset has no state of one worker: in StatefulDataLoader pass "
            "sampler=RequestSampler(loader) of brimful.dynamic.request_sampler with its dataset, or "
            "take WorkerLoader(loader, num_workers=n)"
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration at a state of this data set or of the loader.

        Raises:
            StateError: see the loader.
        """
        self._start_at(state)
        self._start_packs()
        self._news = self._news.end()

    def _start_at(self, state: Mapping[str, Any]) -> None:
        super()._start_at(state)
        self._num_passed = 0


StreamDataset = LoaderDataset
"""Name of ``LoaderDataset`` where its loader is a ``StreamLoader``."""


class WorkerLoader:
    """Loader whose batches are made by worker processes; its state counts delivered batches.

    Iterating serves one epoch, or its remainder, as the loader does. A state may be loaded at any
    time, also with another number of workers; batches that workers have prefetched are then
    discarded.

    Args:
        loader: see ``LoaderDataset``.
        num_workers: number of processes; 0 makes batches in this process.
        data_loader: additional arguments of ``torch.utils.data.DataLoader``, such as
            ``pin_memory``.

    >>> from brimful import PackLoader
    >>> from brimful.testing.toys import toy_packs
    >>> loader = WorkerLoader(PackLoader(toy_packs(3), seed=None), num_workers=0)
    >>> batches = iter(loader)
    >>> next(batches)[0].sample_ids.tolist(), loader.state_dict()["step"]
    ([0], 1)
    """

    def __init__(
        self,
        loader: RankLoader[Any],
        *,
        num_workers: int,
        data_loader: Mapping[str, Any] | None = None,
    ) -> None:
        self._num_workers = whole_number("num_workers", num_workers, minimum=0)
        self._data_loader = dict(data_loader or {})
        self._dataset = LoaderDataset(loader)
        self._num_delivered = 0
        self._iteration = 0

    def __iter__(self) -> Iterator[Any]:
        self.load_state_dict(self.state_dict())
        iteration = self._iteration
        # Forked workers share what was made before the fork.
        self._dataset.prepare()
        for batch in self._batches():
            # Counted before it is yielded: a state saved while it trains continues with the next
            # batch.
            self._num_delivered += 1
            yield batch
            if self._iteration != iteration:
                return  # a state was loaded, or another iteration has begun

    def _batches(self) -> Any:
        return torch.utils.data.DataLoader(
            self._dataset,
            batch_size=None,
            num_workers=self._num_workers,
            # PyTorch's default collate_fn would convert all arrays to tensors.
            **{"collate_fn": _as_it_is, **self._data_loader},
        )

    def __len__(self) -> int:
        """Return the number of micro-batches of a whole epoch on this rank, if the loader knows
        it.
        """
        return len(self._dataset)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless it is the current epoch."""
        state = self.state_dict()
        if epoch != state["epoch"]:
            self.load_state_dict(state)
            self._dataset.set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the loader after the delivered batches."""
        return self._dataset.state_after(self._num_delivered)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to a state; a running iteration ends.

        Raises:
            StateError: see the loader.
        """
        self._dataset.load_state_dict(state)
        self._num_delivered = 0
        self._iteration += 1

    def __repr__(self) -> str:
        return f"WorkerLoader({self._dataset!r}, num_workers {self._num_workers})"


def _as_it_is(batch: Any) -> Any:
    return batch
