"""Samples that lost their end to the overflow policy, and their full lengths, which do not follow from the packs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from brimful.fingerprint import fingerprint_array, fingerprint_of
from brimful.typing import AnyIntArray, Fingerprint, Int64Array, Lengths


@dataclass(frozen=True)
class Truncated:
    """Samples that ``truncate`` cut.

    Attributes:
        sample_ids: ``int64``, ascending.
        lengths: ``int32``, tokens of each sample before it was cut.
        saved_as: fingerprint in the plan's file, if it was opened from one.
    """

    sample_ids: Int64Array
    lengths: Lengths
    saved_as: Fingerprint | None = None

    @classmethod
    def none(cls) -> Truncated:
        """Return an account without samples."""
        return cls(np.empty(0, dtype=np.int64), np.empty(0, dtype=np.int32))

    def __len__(self) -> int:
        return len(self.sample_ids)

    @property
    def fingerprint(self) -> Fingerprint:
        """Fingerprint of samples and lengths."""
        return fingerprint_of([fingerprint_array(self.sample_ids), fingerprint_array(self.lengths)])

    @property
    def is_intact(self) -> bool:
        """True if samples and lengths are as they were saved."""
        return self.saved_as is None or self.fingerprint == self.saved_as

    def lengths_of(self, sample_ids: AnyIntArray, *, otherwise: Lengths) -> Lengths:
        """Return the full lengths of samples, ``int32``; samples that were not cut have the lengths in ``otherwise``.

        >>> cut = Truncated(np.array([2, 5]), np.array([90, 70], dtype=np.int32))
        >>> cut.lengths_of(np.array([5, 1, 2]), otherwise=np.array([8, 3, 8], dtype=np.int32)).tolist()
        [70, 3, 90]
        """
        if not len(self):
            return otherwise
        row = np.minimum(np.searchsorted(self.sample_ids, sample_ids), len(self) - 1)
        return np.where(self.sample_ids[row] == sample_ids, self.lengths[row], otherwise)
