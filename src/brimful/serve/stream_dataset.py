"""Iterable data set over a stream: each worker of a ``DataLoader`` makes every n-th micro-batch of its rank."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch.utils.data

from brimful.checks import check_type, whole_number
from brimful.serve.stream_loader import StreamLoader

__all__ = ["StreamDataset"]


class StreamDataset(torch.utils.data.IterableDataset[Any]):
    """Micro-batches of one rank from a stream, for ``DataLoader(dataset, batch_size=None, num_workers=n)``.

    They are those of ``StreamLoader``, in its order, for every number of workers: worker ``w`` of ``n`` makes micro-batches
    ``w``, ``w + n``, …, and the ``DataLoader`` takes one from each in turn. So every pack is served exactly once, and
    collating costs the training process nothing.

    Args:
        loader: of this rank; the first iteration begins where it stands. The data set opens loaders of its own, with its
            settings.

    Raises:
        WrongTypeError: no ``StreamLoader``.

    >>> import tempfile
    >>> from brimful.testing.toys import toy_stream
    >>> stream = toy_stream(tempfile.mkdtemp(), [2, 2, 1])
    >>> dataset = StreamDataset(StreamLoader(stream, dp_rank=1, dp_world_size=2, lanes=2))
    >>> loader = torch.utils.data.DataLoader(dataset, batch_size=None)
    >>> [[pack.sample_ids.tolist() for pack in batch] for batch in loader]
    [[[1]], [[3]], [[4]]]
    """

    def __init__(self, loader: StreamLoader) -> None:
        super().__init__()
        check_type("loader", loader, StreamLoader, "a StreamLoader", "give StreamDataset(StreamLoader(directory, …))")
        self._directory, self._collate, self._settings = loader.directory, loader.collate_fn, loader.settings
        self._begin = loader.state_dict()

    def _loader(self) -> StreamLoader:
        return StreamLoader.with_settings(self._directory, self._collate, self._settings)

    def __iter__(self) -> Iterator[Any]:
        # A worker opens its own files and follows the log itself, forked or spawned.
        loader = self._loader()
        loader.load_state_dict(self._begin)
        together = loader.packs_together
        worker = torch.utils.data.get_worker_info()
        stride = 1 if worker is None else worker.num_workers
        # Micro-batches of this pass before the next of this worker; those of earlier passes are taken off.
        number = self._begin["packs_delivered"] // together + (0 if worker is None else worker.id)
        while True:
            if loader.has_micro_batch(number * together):
                yield loader.micro_batch(number * together)
                number += stride
                continue
            num_steps = loader.steps_per_epoch
            if not (self._settings.repeat and num_steps):
                return
            number -= num_steps * loader.lanes // together

    def state_after(self, micro_batches: int) -> dict[str, Any]:
        """Return the state behind so many micro-batches of this rank that were trained, since the iteration began.

        The training process counts them: what workers have prefetched is not lost then. ``StreamLoader`` takes it too.

        Args:
            micro_batches: that the ``DataLoader`` has given out.
        """
        loader = self._loader()
        position = self._begin["packs_delivered"]
        position += whole_number("micro_batches", micro_batches, minimum=0) * loader.packs_together
        num_steps, epoch = loader.steps_per_epoch, self._begin["epoch"]
        # The end of a pass belongs to it: whether another follows is asked when the next batch is.
        if self._settings.repeat and num_steps and position > num_steps * loader.lanes:
            passes, position = divmod(position - 1, num_steps * loader.lanes)
            epoch, position = epoch + passes, position + 1
        return {**self._begin, "epoch": epoch, "packs_delivered": position}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Begin the next iteration at a state, of this data set or of a ``StreamLoader``.

        Raises:
            StateError: as of ``StreamLoader``.
        """
        loader = self._loader()
        loader.load_state_dict(state)
        self._begin = loader.state_dict()

    def __repr__(self) -> str:
        return (
            f"StreamDataset({self._directory!r}, dp_rank {self._settings.dp_rank} of {self._settings.dp_world_size}, from step "
            f"{self._begin['packs_delivered'] // self._begin['lanes']:,})"
        )
