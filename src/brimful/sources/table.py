"""A table in memory: pyarrow, pandas or polars."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from brimful.errors import SourceError
from brimful.fingerprint import fingerprint_of
from brimful.sources.block import cut
from brimful.sources.huggingface import table_fingerprint
from brimful.sources.rows import Block, Rows
from brimful.typing import Fingerprint

__all__ = ["TableRows", "is_table"]

_BATCH = 1024


def is_table(data: Any) -> bool:
    """Whether something is a table of a kind that we know, without importing its library."""
    kind = type(data)
    library = kind.__module__.partition(".")[0]
    return (library, kind.__name__) in {("pyarrow", "Table"), ("pandas", "DataFrame"), ("polars", "DataFrame")}


class TableRows(Rows):
    """Rows of an Arrow table.

    >>> import pyarrow as pa
    >>> list(TableRows.of(pa.table({"text": ["a", "b"]})).read(0, 2))
    [{'text': 'a'}, {'text': 'b'}]
    """

    def __init__(self, table: Any, title: str) -> None:
        self._table = table
        self.title = title

    @classmethod
    def of(cls, data: Any) -> TableRows:
        """From a table of any of the three libraries; missing values of pandas become null.

        Raises:
            SourceError: a column that Arrow cannot hold.
        """
        import pyarrow as pa

        library = type(data).__module__.partition(".")[0]
        try:
            if library == "pandas":
                data = pa.Table.from_pandas(data, preserve_index=False)
            elif library == "polars":
                data = data.to_arrow()
        except pa.ArrowException as error:
            raise SourceError(f"the {library} DataFrame has a column that Arrow cannot hold: {error}") from error
        return cls(data, f"{library} table")

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def read(self, start: int, stop: int) -> Iterator[Any]:
        for begin in range(start, stop, _BATCH):
            yield from self._table.slice(begin, min(_BATCH, stop - begin)).to_pylist()

    def where(self, index: int) -> str:
        return f"{self.title}: row {index}"

    @cached_property
    def blocks(self) -> Sequence[Block]:
        return [
            Block(start, stop, table_fingerprint(self._table.slice(start, stop - start)))
            for start, stop in cut(0, len(self))
        ]

    @cached_property
    def fingerprint(self) -> Fingerprint:
        return fingerprint_of([block.fingerprint for block in self.blocks])
