"""Rows that are already in memory."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from brimful.errors import SourceError
from brimful.fingerprint import fingerprint_of
from brimful.sources.rows import UniformBlockRows, block_ranges
from brimful.typing import Fingerprint


class MemoryRows(UniformBlockRows):
    """A list of rows, for tests, notebooks and small data sets.

    >>> len(MemoryRows([{"text": "a"}, {"text": "b"}]))
    2
    """

    def __init__(self, rows: Sequence[Any], title: str = "memory") -> None:
        self._rows = rows
        self.title = title

    def __len__(self) -> int:
        return len(self._rows)

    def read(self, start: int, stop: int) -> Iterator[Any]:
        return (self._rows[index] for index in range(start, stop))

    def where(self, index: int) -> str:
        return f"{self.title}[{index}]"

    def block_fingerprint(self, start: int, stop: int) -> Fingerprint:
        return fingerprint_of(list(self.read(start, stop)))

    def prefix_fingerprints(self, count: int) -> Sequence[Fingerprint]:
        ranges = block_ranges(0, min(count, len(self)), self.block_rows)
        return [fingerprint_of([self.block_fingerprint(*edges) for edges in ranges])]


class DatasetRows(MemoryRows):
    """Rows of a data set with an index, such as a torch ``Dataset``: read again each time, tensors as lists.

    The outputs of a processor for media are refused: packs of tokens do not hold them.
    """

    def read(self, start: int, stop: int) -> Iterator[Any]:
        for row in super().read(start, stop):
            values = row if isinstance(row, Mapping) else {}
            for name, value in values.items():
                if len(getattr(value, "shape", ())) > 1:
                    raise SourceError(
                        f"{self.title}: {name!r} has shape {tuple(value.shape)}, which packs of tokens do not hold: "
                        f"PackedDataset.wrap(dataset, packing_length=…) packs rows as they are encoded"
                    )
            yield {name: getattr(value, "tolist", lambda value=value: value)() for name, value in values.items()} or row
