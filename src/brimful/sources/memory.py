"""Rows that are already in memory: a list, a data set with an index, or a table of pyarrow, pandas
or polars.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from brimful.base.checks import MalformedRowError
from brimful.base.fingerprint import fingerprint_bytes, fingerprint_of
from brimful.base.typing import Fingerprint
from brimful.errors import SourceError
from brimful.sources.rows import UniformBlockRows, block_ranges

_BATCH_ROWS = 1024
"""Number of rows that are converted to Python together: bounds the memory of reading a long
range.
"""


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
    """Rows of a data set with an index, such as a torch ``Dataset``: read again each time, tensors
    as lists.

    The outputs of a processor for media are refused: packs of tokens do not hold them.
    """

    def read(self, start: int, stop: int) -> Iterator[Any]:
        for row in super().read(start, stop):
            values = row if isinstance(row, Mapping) else {}
            for name, value in values.items():
                if len(getattr(value, "shape", ())) > 1:
                    raise SourceError(
                        f"{self.title}: {name!r} has shape {tuple(value.shape)}, which packs of "
                        "tokens do not hold: PackedDataset.wrap(dataset, packing_length=…) packs "
                        "rows as they are encoded"
                    )
            yield {
                name: getattr(value, "tolist", lambda value=value: value)()
                for name, value in values.items()
            } or row


def is_table(data: Any) -> bool:
    """Return true for a table of a known library, without importing the library."""
    data_type = type(data)
    library = data_type.__module__.partition(".")[0]
    return (library, data_type.__name__) in {
        ("pyarrow", "Table"),
        ("pandas", "DataFrame"),
        ("polars", "DataFrame"),
    }


def rows_of_table(table: Any, start: int, stop: int) -> Iterator[Any]:
    """Yield rows ``start … stop-1`` of an Arrow table as dictionaries, or as errors if Python
    cannot hold a value.
    """
    for first, end in block_ranges(start, stop, _BATCH_ROWS):
        rows = table.slice(first, end - first)
        try:
            yield from rows.to_pylist()
        except (ValueError, OverflowError):
            yield from map(_row_of_table, [rows.slice(index, 1) for index in range(end - first)])


def _row_of_table(row: Any) -> Any:
    """Return the only row of a table, or an error that names the column that Python cannot hold
    (invalid UTF-8).
    """
    values = {}
    for name in row.column_names:
        try:
            values[name] = row.column(name).to_pylist()[0]
        except (ValueError, OverflowError) as error:
            return MalformedRowError(f"column {name!r} cannot be read: {error}")
    return values


def table_fingerprint(table: Any) -> Fingerprint:
    """Return the fingerprint of the values of an Arrow table.

    It covers the IPC stream of one contiguous batch: how the table is split into chunks does not
    matter.
    """
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    contiguous = table.combine_chunks().replace_schema_metadata(None)
    with pa.ipc.new_stream(sink, contiguous.schema) as writer:
        writer.write_table(contiguous)
    return fingerprint_bytes(memoryview(sink.getvalue()))


class TableRows(UniformBlockRows):
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
        """Convert a table of any of the three libraries; missing values of pandas become null.

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
            raise SourceError(
                f"the {library} DataFrame has a column that Arrow cannot hold: {error}"
            ) from error
        return cls(data, f"{library} table")

    def __len__(self) -> int:
        return int(self._table.num_rows)

    def read(self, start: int, stop: int) -> Iterator[Any]:
        return rows_of_table(self._table, start, stop)

    def block_fingerprint(self, start: int, stop: int) -> Fingerprint:
        return table_fingerprint(self._table.slice(start, stop - start))
