"""Loaders of composed micro-batches as PyTorch data sets, which ``DataLoader`` and ``Trainer`` recognize by type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset, get_worker_info

from brimful.serve import token_budget_batches, window_batches
from brimful.serve.workers import LoaderDataset


class WindowBatches(window_batches.WindowBatches, IterableDataset[Any]):
    """``WindowBatches`` if PyTorch is imported."""

    def __iter__(self) -> Iterator[Any]:
        return _of_worker(self) or super().__iter__()


class TokenBudgetBatches(token_budget_batches.TokenBudgetBatches, IterableDataset[Any]):
    """``TokenBudgetBatches`` if PyTorch is imported."""

    def __iter__(self) -> Iterator[Any]:
        return _of_worker(self) or super().__iter__()


def _of_worker(loader: WindowBatches | TokenBudgetBatches) -> Iterator[Any] | None:
    """Return this worker's micro-batches, every n-th of n workers; None in the training process or a single worker."""
    worker = get_worker_info()
    return None if worker is None or worker.num_workers == 1 else iter(LoaderDataset(loader))
