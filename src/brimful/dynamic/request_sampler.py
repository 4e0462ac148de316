"""Loaders as a sampler and a data set: the training process keeps order and state, workers only
make batches.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data

from brimful.errors import SettingsError, StateError
from brimful.serve.loader import RankLoader
from brimful.serve.worker_loader import FollowedLoader


class RequestSampler(FollowedLoader, torch.utils.data.Sampler[Any]):
    """Sampler that requests the micro-batches of a loader, for ``StatefulDataLoader`` of torchdata.

    ::

        sampler   request 0, request 1, …     in the training process: the order, and the only state
        dataset   request → micro-batch       in any worker: reads or encodes the packs

    ``StatefulDataLoader(sampler.dataset, sampler=sampler, batch_size=None, num_workers=n)`` keeps
    the state that the sampler had when the last delivered batch was requested, and nothing from its
    workers. Such a state can be loaded by ``loader.load_state_dict`` with the same number of
    workers, and by ``sampler.load_state_dict`` with any number of workers; both accept other ranks.

    An iteration begins at the position of the loader, at the loaded state, or, after the end of an
    epoch, at the next epoch. After an iteration that was abandoned early, the next one begins where
    that one began; ``set_epoch`` selects another epoch.

    Args:
        loader: a ``PackLoader``, or a loader of composed micro-batches from samples by index.

    Raises:
        SettingsError: a loader of a stream, or a loader that asks the other ranks in each step.

    >>> from brimful import PackLoader
    >>> from brimful.testing.toys import toy_packs
    >>> sampler = RequestSampler(PackLoader(toy_packs(3), seed=None))
    >>> batches = torch.utils.data.DataLoader(sampler.dataset, sampler=sampler, batch_size=None)
    >>> [pack.sample_ids.tolist() for pack, in batches]
    [[0], [1], [2]]
    >>> sampler.state_dict()["epoch"]
    1
    """

    def __init__(self, loader: RankLoader[Any]) -> None:
        super().__init__(loader)
        if not loader.order.knows_all:
            raise SettingsError(
                "a sampler requests batches ahead, and the training process would wait for packs "
                "that a stream does not have yet: WorkerLoader(loader, num_workers=n) serves a "
                "stream with a state"
            )
        self.dataset = RequestDataset(loader)

    def __iter__(self) -> Iterator[Any]:
        self._loader.load_state_dict(self._start_state)
        return self._requests()

    def _requests(self) -> Iterator[Any]:
        order, epoch = self._loader.order, self._loader.epoch
        # An epoch ends at its last batch, or, in some orders, only when the next request returns
        # None.
        while order.epoch == epoch and (request := order.next_request()) is not None:
            # Counted before it is yielded: torchdata takes the state of a batch after it has
            # requested the batch.
            order.advance()
            yield request
        self._start_state = order.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Return the state after the last request; the loader itself accepts it too."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration at a state of a sampler, a loader, or a ``StatefulDataLoader``
        with such a sampler.

        The state of a ``StatefulDataLoader`` may come from any number of workers. Load it before
        iterating the data loader.

        Raises:
            StateError: see the loader; or a state that lags behind the delivered batches, or
                belongs to another sampler.
        """
        self._start_at(_of_sampler(state))


class RequestDataset(torch.utils.data.Dataset[Any]):
    """Micro-batches for the requests of a ``RequestSampler``. Has no state."""

    def __init__(self, loader: RankLoader[Any]) -> None:
        self._loader = loader

    def __getitem__(self, request: Any) -> Any:
        return self._loader.make_batch(request)

    def __repr__(self) -> str:
        return f"RequestDataset({self._loader!r})"


def _of_sampler(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the sampler state inside a state of torchdata 0.11; its place differs with and without
    workers.
    """
    snapshot = state.get("_snapshot")
    main = state if snapshot is None else snapshot.get("_main_snapshot", {})
    if "_index_sampler_state" not in main:
        return dict(state)
    if num_batches := state.get("_steps_since_snapshot", 0):
        raise StateError(
            f"the state of StatefulDataLoader is {num_batches} batches behind what it delivered: "
            "save with snapshot_every_n_steps=1, or load it by StatefulDataLoader.load_state_dict "
            "with the same ranks and workers"
        )
    found = main["_index_sampler_state"]
    if not isinstance(found, Mapping):
        raise StateError(
            "the state of StatefulDataLoader holds no state of a RequestSampler: pass "
            "sampler=RequestSampler(loader)"
        )
    return dict(found)
