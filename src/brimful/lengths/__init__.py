"""Table of lengths: what measuring leaves and planning takes; it knows no source, encoder or medium."""

from brimful.lengths.account import Account
from brimful.lengths.table import LengthTable
from brimful.lengths.targets import Targets

__all__ = ["Account", "LengthTable", "Targets"]
