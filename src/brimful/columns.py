"""Memory-mapped columns in one Arrow IPC file: the container of every table that brimful writes.

A table is a set of equally long columns and a JSON description. A column is a flat array, or a *ragged*
one whose rows have their own lengths. Reading maps the file and returns views; nothing is copied and
opening takes the same time for ten rows or a billion. Any Arrow reader (polars, DuckDB, pandas) opens it too.

>>> import numpy as np, tempfile, os
>>> path = os.path.join(tempfile.mkdtemp(), "t.arrow")
>>> rows = Ragged(np.array([7, 8, 9], dtype=np.int32), np.array([0, 2, 3]))
>>> write_columns(path, {"size": np.array([2, 1]), "ids": rows}, {"unit": "tokens"})
>>> table = open_columns(path)
>>> table.description["unit"], table.flat("size").tolist(), table.ragged("ids").row(0).tolist()
('tokens', [2, 1], [7, 8])
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import IO, Any

import numpy as np

from brimful.arguments import path_of
from brimful.errors import CorruptFileError, SourceNotFoundError
from brimful.store import atomic_file
from brimful.typing import Offsets

__all__ = ["Columns", "Ragged", "open_columns", "write_columns"]

_KEY = b"brimful"
_Array = np.ndarray[Any, np.dtype[Any]]


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: row ``i`` is ``values[offsets[i]:offsets[i + 1]]``."""

    values: _Array
    offsets: Offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> _Array:
        """A view of one row."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]


def write_columns(
    path: str | os.PathLike[str], columns: Mapping[str, _Array | Ragged], description: Mapping[str, Any]
) -> None:
    """Write one table atomically.

    Args:
        path: of the file to appear.
        columns: by name; all of one length. Integers, floats and booleans.
        description: what JSON can hold.

    Raises:
        StoreFullError: no space left; nothing appears.
    """
    with atomic_file(path) as file:
        _write(file, columns, description)


def _write(file: IO[bytes], columns: Mapping[str, _Array | Ragged], description: Mapping[str, Any]) -> None:
    import pyarrow as pa

    arrays = {name: _to_arrow(column) for name, column in columns.items()}
    metadata = {_KEY: json.dumps(description, ensure_ascii=False).encode()}
    schema = pa.schema([pa.field(name, array.type) for name, array in arrays.items()], metadata=metadata)
    batch = pa.record_batch(list(arrays.values()), schema=schema)
    with pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch)


def _to_arrow(column: _Array | Ragged) -> Any:
    import pyarrow as pa

    if isinstance(column, Ragged):
        values = pa.array(np.ascontiguousarray(column.values))
        return pa.LargeListArray.from_arrays(pa.array(np.ascontiguousarray(column.offsets, dtype=np.int64)), values)
    return pa.array(np.ascontiguousarray(column))


class Columns:
    """An open table. Arrays are read-only views of the mapped file, which stays mapped while they live."""

    def __init__(self, path: str, batch: Any, description: dict[str, Any]) -> None:
        self.path = path
        self.description = description
        self._batch = batch

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    @property
    def names(self) -> list[str]:
        """Names of the columns, in file order."""
        return list(self._batch.schema.names)

    def flat(self, name: str) -> _Array:
        """One value per row."""
        column = self._batch.column(name)
        array: _Array = column.to_numpy(zero_copy_only=column.type != "bool")  # booleans are stored as bits
        return array

    def ragged(self, name: str) -> Ragged:
        """Several values per row."""
        column = self._batch.column(name)
        offsets = column.offsets.to_numpy(zero_copy_only=True)
        return Ragged(column.values.to_numpy(zero_copy_only=True), offsets)


def open_columns(path: str | os.PathLike[str]) -> Columns:
    """Map a table into memory.

    Raises:
        SourceNotFoundError: no such file.
        CorruptFileError: the file is cut short or is no table of ours.
    """
    import pyarrow as pa

    name = path_of("path", path)
    try:
        reader = pa.ipc.open_file(pa.memory_map(name))
        metadata = reader.schema.metadata or {}
        if _KEY not in metadata:
            raise CorruptFileError(f"{name} is an Arrow file that brimful did not write")
        if reader.num_record_batches != 1:
            raise CorruptFileError(f"{name} holds {reader.num_record_batches} record batches where one is due")
        description = json.loads(metadata[_KEY])
        batch = reader.get_batch(0)
        batch.validate()
        return Columns(name, batch, description)
    except CorruptFileError:
        raise
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{name}: no such file") from error
    except (pa.ArrowException, MemoryError, ValueError, OSError) as error:
        raise CorruptFileError(f"{name} cannot be read as a table of brimful: {_first_line(error)}") from error


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0]
