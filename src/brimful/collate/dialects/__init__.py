"""A ``PackedBatch`` in the words of each trainer: one file per contract."""

from __future__ import annotations
