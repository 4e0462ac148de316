"""Packs to batches: ``layout`` writes the boundaries, ``dialects`` speak the words of each trainer."""

from __future__ import annotations

from brimful.collate.batch import PackedBatch
from brimful.collate.layout import lay_out

__all__ = ["PackedBatch", "lay_out"]
