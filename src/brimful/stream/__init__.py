"""Streams of packs that may still grow: planned by a ``Lookahead``, served by ``StreamLoader`` or
``LazyShardedDataset``, acknowledged.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brimful.base.optional import at_first_use
from brimful.stream.acks import mark_completed, remove_acknowledged
from brimful.stream.assignment import Assignment, StreamSettings
from brimful.stream.lazy_dataset import LazyShardedDataset
from brimful.stream.lookahead import Lookahead
from brimful.stream.stream_loader import StreamLoader
from brimful.stream.stream_packs import StreamPacks

__all__ = [
    "Assignment",
    "LazyShardedDataset",
    "Lookahead",
    "PackingProducer",
    "StreamDataset",
    "StreamLoader",
    "StreamPacks",
    "StreamSettings",
    "mark_completed",
    "remove_acknowledged",
]

if TYPE_CHECKING:
    from brimful.serve.worker_loader import StreamDataset
    from brimful.stream.producer import PackingProducer

__getattr__ = at_first_use(
    __name__, {"producer": ("PackingProducer",), "brimful.serve.worker_loader": ("StreamDataset",)}
)
