"""Iterable data set over a stream: each worker of a ``DataLoader`` makes every n-th micro-batch of its rank."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

from brimful.plan.schedule import Tail
from brimful.serve.stream_loader import OnCorrupt, StreamLoader
from brimful.serve.stream_order import Assignment
from brimful.serve.workers import LoaderDataset
from brimful.shards import Pack

__all__ = ["StreamDataset"]


class StreamDataset(LoaderDataset):
    """Micro-batches of one rank from a stream, for ``DataLoader(dataset, batch_size=None, num_workers=n)``.

    They are those of ``StreamLoader``, in its order, for every number of workers (``LoaderDataset``). A worker opens its own
    files and follows the log itself, forked or spawned.

    Args:
        directory, collate_fn, dp_rank, dp_world_size, lanes, assign, packs_per_micro_batch, tail: as of ``StreamLoader``.
        timeout, on_corrupt, cache_dir, cache_bytes: as of ``StreamLoader``.
        repeat: begin again at the end of the stream, without end.

    Raises:
        SettingsError: as of ``StreamLoader``.

    >>> import tempfile
    >>> from brimful.testing.toys import toy_stream
    >>> dataset = StreamDataset(toy_stream(tempfile.mkdtemp(), [2, 2, 1]), dp_rank=1, dp_world_size=2, lanes=2)
    >>> import torch
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
        super().__init__(
            StreamLoader(
                directory,
                collate_fn,
                dp_rank=dp_rank,
                dp_world_size=dp_world_size,
                lanes=lanes,
                assign=assign,
                packs_per_micro_batch=packs_per_micro_batch,
                tail=tail,
                timeout=timeout,
                on_corrupt=on_corrupt,
                repeat=repeat,
                cache_dir=cache_dir,
                cache_bytes=cache_bytes,
            )
        )
