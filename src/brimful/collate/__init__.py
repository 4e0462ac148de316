"""Conversion of packs to batches: ``layout`` writes the boundaries, ``dialects`` hold the keys of each trainer."""

from brimful.base.tokenized_media import Media
from brimful.collate.batch import PackedBatch
from brimful.collate.columns import Column, ColumnPlace
from brimful.collate.dialects import DIALECTS, Dialect, dialect_of
from brimful.collate.extras import PackExtras
from brimful.collate.layout import lay_out
from brimful.collate.loss import Normaliser, segment_weights, token_weights
from brimful.collate.padding import Padding, shift_labels

__all__ = [
    "DIALECTS",
    "Column",
    "ColumnPlace",
    "Dialect",
    "Media",
    "Normaliser",
    "PackExtras",
    "PackedBatch",
    "Padding",
    "dialect_of",
    "lay_out",
    "segment_weights",
    "shift_labels",
    "token_weights",
]
