"""Places of samples in a batch: one sample's, and those of all."""

from dataclasses import dataclass

from brimful.typing import BoolArray


@dataclass(frozen=True, slots=True)
class Place:
    """Row and columns of a sample."""

    row: int
    start: int
    stop: int

    @property
    def index(self) -> tuple[int, slice]:
        """Index of the sample's tokens in an array of ``[B, T]``."""
        return self.row, slice(self.start, self.stop)


@dataclass(frozen=True)
class SampleLayout:
    """Places of all samples in a batch.

    Attributes:
        places: of each segment; None for one that is not in the batch as a whole.
        repeated: segments that the batch holds more than once.
        fragments: ``bool[B, T]``: tokens that certainly belong to samples, and lie in no place.
        certain: true if the samples cannot be laid out in another way.
    """

    places: tuple[Place | None, ...]
    repeated: tuple[int, ...]
    fragments: BoolArray
    certain: bool
