"""Exact lengths of samples: ``measure_lengths``, its ``LengthTable``, and a ``LengthCache`` for
training.
"""

from brimful.lengths.table import LengthTable
from brimful.measure.job import measure_lengths
from brimful.measure.joined import join_tables
from brimful.measure.length_cache import LengthCache, OnCacheMismatch
from brimful.measure.measure_settings import OnBadSample, OnMismatch

__all__ = [
    "LengthCache",
    "LengthTable",
    "OnBadSample",
    "OnCacheMismatch",
    "OnMismatch",
    "join_tables",
    "measure_lengths",
]
