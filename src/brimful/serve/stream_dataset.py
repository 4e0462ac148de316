"""Iterable data set over a stream: each worker of a ``DataLoader`` makes every n-th micro-batch of its rank."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch.utils.data

from brimful.checks import path_of, whole_number
from brimful.plan.schedule import Tail
from brimful.serve.stream_loader import OnCorrupt, StreamLoader
from brimful.serve.stream_order import Assignment
from brimful.shards import Pack

__all__ = ["StreamDataset"]


class StreamDataset(torch.utils.data.IterableDataset[Any]):
    """Micro-batches of one rank from a stream, for ``DataLoader(dataset, batch_size=None, num_workers=n)``.

    They are those of ``StreamLoader``, in its order, for every number of workers: worker ``w`` of ``n`` makes micro-batches
    ``w``, ``w + n``, …, and the ``DataLoader`` takes one from each in turn. So every pack is served exactly once, and
    collating costs the training process nothing.

    Args:
        directory, collate_fn, dp_rank, dp_world_size, lanes, assign, packs_per_micro_batch, tail: as of ``StreamLoader``.
        timeout, on_corrupt, cache_dir, cache_bytes: as of ``StreamLoader``.
        repeat: begin again at the end of the stream, without end.

    Raises:
        SettingsError: as of ``StreamLoader``.

    >>> import tempfile
    >>> from brimful.testing.toys import toy_stream
    >>> dataset = StreamDataset(toy_stream(tempfile.mkdtemp(), [2, 2, 1]), dp_rank=1, dp_world_size=2, lanes=2)
    >>> loader = torch.utils.data.DataLoader(dataset, batch_size=None)
    >>> [[pack.sample_ids.tolist() for pack in batch] for batch in loader]
    [[[1]], [[3]], [[4]]]
    """

    def __init__(
        self,
        directory: str | os.PathLike[str],
        collate_fn: Callable[[list[Pack]], Any] | None = None,
        *,
        dp_rank: int = 0,
        dp_world_size: int = 1,
        lanes: int | None = None,
        assign: Assignment | str | None = None,
        packs_per_micro_batch: int | None = None,
        tail: Tail | str = Tail.PAD,
        timeout: float | None = None,
        on_corrupt: OnCorrupt = "error",
        repeat: bool = False,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_bytes: int | None = None,
    ) -> None:
        super().__init__()
        self._directory = path_of("directory", directory, "the path of a stream")
        self._collate, self._repeat = collate_fn, bool(repeat)
        self._settings: dict[str, Any] = {
            "dp_rank": dp_rank,
            "dp_world_size": dp_world_size,
            "lanes": lanes,
            "assign": assign,
            "packs_per_micro_batch": packs_per_micro_batch,
            "tail": tail,
            "timeout": timeout,
            "on_corrupt": on_corrupt,
            "repeat": repeat,
            "cache_dir": cache_dir,
            "cache_bytes": cache_bytes,
        }
        # Settings are refused here and not in a worker.
        self._begin = self._loader().state_dict()

    def _loader(self) -> StreamLoader:
        return StreamLoader(self._directory, self._collate, **self._settings)

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
            if not (self._repeat and num_steps):
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
        if self._repeat and num_steps and position > num_steps * loader.lanes:
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
        rank, world_size = self._settings["dp_rank"], self._settings["dp_world_size"]
        return (
            f"StreamDataset({self._directory!r}, dp_rank {rank} of {world_size}, from step "
            f"{self._begin['packs_delivered'] // self._begin['lanes']:,})"
        )
