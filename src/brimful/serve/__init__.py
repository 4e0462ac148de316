"""Packs for trainers: ``open_packs``, ``PackedDataset``, ``PackLoader``, ``TokenBudgetBatches``, …"""

from typing import Any

from brimful.optional import public_name
from brimful.serve.agreement import RankAgreement
from brimful.serve.compose import BatchLedger, compose
from brimful.serve.composed_batches import TokenBudgetBatches, WindowBatches
from brimful.serve.dataset import PackedDataset
from brimful.serve.loader import PackLoader
from brimful.serve.pack_store import PackStore, open_packs
from brimful.serve.token_budget import Count, Fit, SampleCount, TokenBudget, Warmup
from brimful.serve.window import Window
from brimful.shards import Pack

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
    "compose",
    "open_packs",
]

_FORMER = (
    "Assignment",
    "LazyShardedDataset",
    "StreamLoader",
    "StreamSettings",
    "mark_completed",
    "remove_acknowledged",
)
"""Names of ``brimful.stream`` that were names of this package: they are found here too."""


def __getattr__(name: str) -> Any:
    return public_name(__name__, "brimful.stream" if name in _FORMER else None, name)
