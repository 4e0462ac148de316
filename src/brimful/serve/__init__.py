"""Packs to whoever trains: ``open_packs``, ``PackedDataset``, ``PackLoader``."""

from __future__ import annotations

from brimful.serve.dataset import PackedDataset
from brimful.serve.loader import PackLoader
from brimful.serve.packs import PackStore, open_packs
from brimful.shards import Pack

__all__ = ["Pack", "PackLoader", "PackStore", "PackedDataset", "open_packs"]
