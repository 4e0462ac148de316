"""Streams of packs that may still grow: ``StreamLoader``, ``LazyShardedDataset``, acknowledgments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brimful.base.optional import public_name
from brimful.stream.acks import mark_completed, remove_acknowledged
from brimful.stream.assignment import Assignment, StreamSettings
from brimful.stream.lazy_dataset import LazyShardedDataset
from brimful.stream.stream_loader import StreamLoader

__all__ = [
    "Assignment",
    "LazyShardedDataset",
    "PackingProducer",
    "StreamDataset",
    "StreamLoader",
    "StreamSettings",
    "mark_completed",
    "remove_acknowledged",
]

_MODULE_OF = {"PackingProducer": "brimful.stream.producer", "StreamDataset": "brimful.serve.worker_loader"}
"""Module of each name that is imported when it is used: producers load encoders, and a data set needs torch."""

if TYPE_CHECKING:
    from brimful.serve.worker_loader import StreamDataset
    from brimful.stream.producer import PackingProducer


def __getattr__(name: str) -> Any:
    return public_name(__name__, _MODULE_OF.get(name), name)
