"""Streams of packs that may still grow: ``StreamLoader``, ``LazyShardedDataset``, acknowledgments."""

from brimful.stream.acks import mark_completed, remove_acknowledged
from brimful.stream.lazy_dataset import LazyShardedDataset
from brimful.stream.order import Assignment
from brimful.stream.settings import StreamSettings
from brimful.stream.stream_loader import StreamLoader

__all__ = [
    "Assignment",
    "LazyShardedDataset",
    "StreamLoader",
    "StreamSettings",
    "mark_completed",
    "remove_acknowledged",
]
