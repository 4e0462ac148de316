"""Lengths of samples: what measuring returns and all that planning needs."""

from brimful.lengths.table import LengthTable
from brimful.lengths.targets import Account, Targets

__all__ = ["Account", "LengthTable", "Targets"]
