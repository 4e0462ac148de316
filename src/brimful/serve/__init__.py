"""Packs for trainers: ``open_packs``, ``PackedDataset``, ``PackLoader``, ``TokenBudgetBatches``,
…
"""

from brimful.serve.agreement import RankAgreement
from brimful.serve.compose import BatchLedger
from brimful.serve.composed_batches import TokenBudgetBatches, WindowBatches
from brimful.serve.dataset import PackedDataset
from brimful.serve.loader import PackLoader
from brimful.serve.online_window import Window
from brimful.serve.pack_store import PackStore, open_packs
from brimful.serve.token_budget import Count, Fit, SampleCount, TokenBudget, Warmup
from brimful.store.shards import Pack

__all__ = [
    "BatchLedger",
    "Count",
    "Fit",
    "Pack",
    "PackLoader",
    "PackStore",
    "PackedDataset",
    "RankAgreement",
    "SampleCount",
    "TokenBudget",
    "TokenBudgetBatches",
    "Warmup",
    "Window",
    "WindowBatches",
    "open_packs",
]
