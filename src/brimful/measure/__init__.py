"""Exact lengths of samples: ``measure_lengths`` and its ``LengthTable``."""

from brimful.lengths.table import LengthTable
from brimful.measure.job import measure_lengths
from brimful.measure.joined import join_tables
from brimful.measure.measure_settings import OnBadSample, OnMismatch

__all__ = [
    "LengthTable",
    "OnBadSample",
    "OnMismatch",
    "join_tables",
    "measure_lengths",
]
