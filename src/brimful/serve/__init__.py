"""Packs for trainers: ``open_packs``, ``PackedDataset``, ``PackLoader``."""

from brimful.serve.dataset import PackedDataset
from brimful.serve.loader import PackLoader
from brimful.serve.pack_store import PackStore, open_packs
from brimful.store.shards import Pack

__all__ = [
    "Pack",
    "PackLoader",
    "PackStore",
    "PackedDataset",
    "open_packs",
]
