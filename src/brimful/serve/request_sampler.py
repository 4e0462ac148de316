"""Loaders as a sampler and a data set: the training process keeps the order and the state, workers only make batches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data

from brimful.checks import check_type
from brimful.errors import SettingsError, StateError
from brimful.serve.rank_loader import RankLoader
from brimful.serve.stream_loader import StreamLoader

__all__ = ["RequestDataset", "RequestSampler"]


class RequestSampler(torch.utils.data.Sampler[Any]):
    """Sampler that asks for the micro-batches of a loader, for ``StatefulDataLoader`` of torchdata.

    ::

        sampler   request 0, request 1, …     in the training process: the order, and the one state
        dataset   request → micro-batch       in any worker: reads or encodes the packs

    ``StatefulDataLoader(sampler.dataset, sampler=sampler, batch_size=None, num_workers=n)`` keeps the state of the
    sampler as it was when the last delivered batch was asked for, and nothing of its workers. A state of it goes on with
    ``loader.load_state_dict`` with as many workers, and with ``sampler.load_state_dict`` with any number of them; with
    other ranks either way.

    An iteration begins where the loader stood, at the state that was loaded, or at the next epoch behind the end of one.
    One that was left early begins again where it began; ``set_epoch`` says another epoch.

    Args:
        loader: a ``PackLoader``, or loader of composed micro-batches from samples by index.

    Raises:
        SettingsError: a loader of a stream, or that asks the other ranks in each step.

    >>> from brimful import PackLoader
    >>> from brimful.testing.toys import toy_packs
    >>> sampler = RequestSampler(PackLoader(toy_packs(3), seed=None))
    >>> batches = torch.utils.data.DataLoader(sampler.dataset, sampler=sampler, batch_size=None)
    >>> [pack.sample_ids.tolist() for pack, in batches]
    [[0], [1], [2]]
    >>> sampler.state_dict()["epoch"]
    1
    """

    def __init__(self, loader: RankLoader) -> None:
        check_type("loader", loader, RankLoader, "a loader of brimful", "packs by index go to DataLoader themselves")
        if isinstance(loader, StreamLoader):
            raise SettingsError(
                "a sampler asks for batches ahead, and the training process would wait for packs that a stream has not "
                "yet: WorkerLoader(loader, num_workers=n) serves a stream with a state"
            )
        self._loader = loader.fork()
        self._begin = self._loader.state_dict()
        self.dataset = RequestDataset(loader.fork())

    def __iter__(self) -> Iterator[Any]:
        self._loader.load_state_dict(self._begin)
        return self._requests()

    def _requests(self) -> Iterator[Any]:
        loader, epoch = self._loader, self._loader.epoch
        # An epoch ends at its last batch, or where only the next request shows that there is none.
        while loader.epoch == epoch and (request := loader.next_request()) is not None:
            # Counted before it leaves: torchdata takes the state of a batch when it has asked for it.
            loader.advance()
            yield request
        self._begin = loader.state_dict()

    def __len__(self) -> int:
        """Return the micro-batches of a whole epoch on this rank; of loaders that know it."""
        return len(self._loader)  # type: ignore[arg-type]

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration serve an epoch from its beginning, unless it begins within that one already."""
        if epoch != self._begin["epoch"]:
            self._loader.begin_epoch(epoch)
            self._begin = self._loader.state_dict()

    def state_dict(self) -> dict[str, Any]:
        """Return the state behind the last request; the loader itself takes it too."""
        return self._loader.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration at a state of a sampler, of a loader, or of a ``StatefulDataLoader`` with one of these.

        That of a ``StatefulDataLoader`` may be of any number of workers. Load it before the data loader is iterated.

        Raises:
            StateError: as of the loader; or a state that is some batches behind what was delivered, or of another sampler.
        """
        self._loader.load_state_dict(_of_sampler(state))
        self._begin = self._loader.state_dict()

    def __repr__(self) -> str:
        return f"RequestSampler({self._loader!r})"


class RequestDataset(torch.utils.data.Dataset[Any]):
    """Micro-batches by the request of a ``RequestSampler``. Has no state."""

    def __init__(self, loader: RankLoader) -> None:
        self._loader = loader

    def __getitem__(self, request: Any) -> Any:
        return self._loader.make_batch(request)

    def __repr__(self) -> str:
        return f"RequestDataset({self._loader!r})"


def _of_sampler(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the state of the sampler within one of torchdata 0.11, which has it elsewhere with workers than without."""
    snapshot = state.get("_snapshot")
    main = state if snapshot is None else snapshot.get("_main_snapshot", {})
    if "_index_sampler_state" not in main:
        return dict(state)
    if num_batches := state.get("_steps_since_snapshot", 0):
        raise StateError(
            f"the state of StatefulDataLoader is {num_batches} batches behind what it delivered: save with "
            f"snapshot_every_n_steps=1, or load it by StatefulDataLoader.load_state_dict with the same ranks and workers"
        )
    found = main["_index_sampler_state"]
    if not isinstance(found, Mapping):
        raise StateError(
            "the state of StatefulDataLoader holds none of a RequestSampler: pass sampler=RequestSampler(loader)"
        )
    return dict(found)
