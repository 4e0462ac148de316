"""Table of lengths: output of measuring and input of planning; independent of sources, encoders and media."""

from brimful.lengths.table import LengthTable
from brimful.lengths.targets import Account, Targets

__all__ = ["Account", "LengthTable", "Targets"]
