"""Conversion of packs to batches: ``layout`` writes the boundaries, ``dialects`` hold the keys of
each trainer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from brimful.base.attachment import AttachedInputs
from brimful.base.optional import at_first_use
from brimful.collate.batch import PackedBatch
from brimful.collate.columns import Column, ColumnPlace
from brimful.collate.dialects import DIALECTS, Dialect, dialect_of
from brimful.collate.extras import PackExtras
from brimful.collate.layout import lay_out
from brimful.collate.loss import Normaliser, segment_weights, token_weights
from brimful.collate.padding import Padding, shift_labels

__all__ = [
    "DIALECTS",
    "AttachedInputs",
    "Column",
    "ColumnPlace",
    "Dialect",
    "Normaliser",
    "PackExtras",
    "PackedBatch",
    "Padding",
    "dialect_of",
    "lay_out",
    "per_sample_loss",
    "segment_weights",
    "shift_labels",
    "token_weights",
]

if TYPE_CHECKING:
    from brimful.collate.loss_torch import per_sample_loss

__getattr__ = at_first_use(__name__, {"loss_torch": ("per_sample_loss",)})
