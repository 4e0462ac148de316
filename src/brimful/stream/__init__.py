"""Streams of packs that may still grow: ``StreamLoader``, ``LazyShardedDataset``, acknowledgments."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from brimful.base.optional import public_name
from brimful.stream.acks import mark_completed, remove_acknowledged
from brimful.stream.lazy_dataset import LazyShardedDataset
from brimful.stream.order import Assignment
from brimful.stream.settings import StreamSettings
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

_MODULE_OF = {"PackingProducer": "brimful.stream.producer", "StreamDataset": "brimful.stream.stream_dataset"}
"""Module of each name that is imported when it is used: producers load encoders, and a data set needs torch."""

if TYPE_CHECKING:
    from brimful.stream.producer import PackingProducer
    from brimful.stream.stream_dataset import StreamDataset


def __getattr__(name: str) -> Any:
    return public_name(__name__, _MODULE_OF.get(name), name)
