"""Packs for trainers: ``open_packs``, ``PackedDataset``, ``PackLoader``, ``StreamLoader``, ``TokenBudgetBatches``, …"""

from brimful.serve.acks import mark_completed, remove_acknowledged
from brimful.serve.agreement import RankAgreement
from brimful.serve.compose import BatchLedger, compose
from brimful.serve.dataset import PackedDataset
from brimful.serve.lazy_dataset import LazyShardedDataset
from brimful.serve.loader import PackLoader
from brimful.serve.pack_store import PackStore, open_packs
from brimful.serve.stream_loader import StreamLoader
from brimful.serve.stream_order import Assignment
from brimful.serve.stream_settings import StreamSettings
from brimful.serve.token_budget import Count, Fit, SampleCount, TokenBudget, Warmup
from brimful.serve.token_budget_batches import TokenBudgetBatches
from brimful.serve.window import Window
from brimful.serve.window_batches import WindowBatches
from brimful.shards import Pack

__all__ = [
    "Assignment",
    "BatchLedger",
    "Count",
    "Fit",
    "LazyShardedDataset",
    "Pack",
    "PackLoader",
    "PackStore",
    "PackedDataset",
    "RankAgreement",
    "SampleCount",
    "StreamLoader",
    "StreamSettings",
    "TokenBudget",
    "TokenBudgetBatches",
    "Warmup",
    "Window",
    "WindowBatches",
    "compose",
    "mark_completed",
    "open_packs",
    "remove_acknowledged",
]
