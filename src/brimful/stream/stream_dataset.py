"""Iterable data set over a stream: each worker of a ``DataLoader`` makes every n-th micro-batch of its rank."""

from __future__ import annotations

from brimful.base.checks import check_type
from brimful.serve.worker_loader import LoaderDataset
from brimful.stream.stream_loader import StreamLoader

__all__ = ["StreamDataset"]


class StreamDataset(LoaderDataset):
    """Micro-batches of one rank from a stream, for ``DataLoader(dataset, batch_size=None, num_workers=n)``.

    They equal the micro-batches of ``StreamLoader``, in its order, for every number of workers (``LoaderDataset``). A
    forked or spawned worker opens its own files and follows the log itself.

    Args:
        loader: loader of this rank; the first iteration begins at its position.

    Raises:
        WrongTypeError: ``loader`` is not a ``StreamLoader``.

    >>> import tempfile
    >>> import torch
    >>> from brimful.testing.toys import toy_stream
    >>> stream = toy_stream(tempfile.mkdtemp(), [2, 2, 1])
    >>> dataset = StreamDataset(StreamLoader(stream, dp_rank=1, dp_world_size=2, lanes=2))
    >>> loader = torch.utils.data.DataLoader(dataset, batch_size=None)
    >>> [[pack.sample_ids.tolist() for pack in batch] for batch in loader]
    [[[1]], [[3]], [[-1]]]
    """

    def __init__(self, loader: StreamLoader) -> None:
        check_type("loader", loader, StreamLoader, "a StreamLoader", "give StreamDataset(StreamLoader(directory, …))")
        super().__init__(loader)
