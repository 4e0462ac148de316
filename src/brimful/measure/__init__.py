"""Samples to exact lengths: ``measure_lengths`` and the ``LengthTable`` it makes."""

from brimful.measure.job import OnBadSample, OnMismatch, measure_lengths
from brimful.measure.table import LengthTable

__all__ = ["LengthTable", "OnBadSample", "OnMismatch", "measure_lengths"]
