"""Packs to whoever trains: ``open_packs``, ``PackedDataset``, ``PackLoader``, ``TokenBudgetBatches``."""

from __future__ import annotations

from brimful.serve.budget_batches import TokenBudgetBatches
from brimful.serve.composer import BatchLedger, compose
from brimful.serve.dataset import PackedDataset
from brimful.serve.loader import PackLoader
from brimful.serve.packs import PackStore, open_packs
from brimful.serve.token_budget import Count, Fit, SampleCount, TokenBudget, Warmup
from brimful.shards import Pack

__all__ = [
    "BatchLedger",
    "Count",
    "Fit",
    "Pack",
    "PackLoader",
    "PackStore",
    "PackedDataset",
    "SampleCount",
    "TokenBudget",
    "TokenBudgetBatches",
    "Warmup",
    "compose",
    "open_packs",
]
