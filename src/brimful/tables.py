"""Memory-mapped columns in one Arrow IPC file: the container of every table that brimful writes.

A table is a set of equally long columns and a JSON description. A column is a flat array, or a *ragged*
one whose rows have their own lengths. Reading maps the file and returns views; nothing is copied and
opening takes the same time for ten rows or a billion. Any Arrow reader (polars, DuckDB, pandas) opens it too.

Everything that is read back is checked. The checksum of the description is held against it when the file is opened;
that of a column when the column is first asked for, which reads all of it once. Who has to open large tables in
milliseconds and holds the arrays against something else later (plans: ``Plan.check_fingerprint``) asks for them with
``checked=False``. Tables of earlier versions have no checksums; they open, and ``checksummed`` says so.

>>> import numpy as np, tempfile, os
>>> path = os.path.join(tempfile.mkdtemp(), "t.arrow")
>>> rows = Ragged(np.array([7, 8, 9], dtype=np.int32), np.array([0, 2, 3]))
>>> write_table(path, {"size": np.array([2, 1]), "ids": rows}, {"unit": "tokens"})
>>> table = open_table(path)
>>> table.description["unit"], table.flat("size").tolist(), table.ragged("ids").row(0).tolist()
('tokens', [2, 1], [7, 8])
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import IO, Any, TypeVar

import numpy as np
import xxhash

from brimful.blobs import atomic_file
from brimful.checks import path_of
from brimful.errors import CorruptFileError, SourceNotFoundError
from brimful.fingerprint import fingerprint_bytes
from brimful.typing import Fingerprint, Offsets

__all__ = ["Table", "Ragged", "open_table", "write_table"]

_KEY = b"brimful"
_SUMS = b"brimful_checksums"
_DESCRIPTION = ""
"""Stands for the description among the names of the columns, none of which is empty."""
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


_Column = TypeVar("_Column", _Array, Ragged)


def write_table(
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

    plain = {name: _plain(column) for name, column in columns.items()}
    arrays = {name: _to_arrow(column) for name, column in plain.items()}
    described = json.dumps(description, ensure_ascii=False).encode()
    sums = {_DESCRIPTION: fingerprint_bytes(described), **{name: _checksum(plain[name]) for name in plain}}
    metadata = {_KEY: described, _SUMS: json.dumps(sums).encode()}
    schema = pa.schema([pa.field(name, array.type) for name, array in arrays.items()], metadata=metadata)
    batch = pa.record_batch(list(arrays.values()), schema=schema)
    with pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch)


def _plain(column: _Array | Ragged) -> _Array | Ragged:
    """Contiguous, and without values outside all rows, which Arrow would leave out of the file."""
    if not isinstance(column, Ragged):
        return np.ascontiguousarray(column)
    offsets = np.ascontiguousarray(column.offsets, dtype=np.int64)
    first, end = int(offsets[0]), int(offsets[-1])
    return Ragged(np.ascontiguousarray(column.values[first:end]), offsets - first if first else offsets)


def _checksum(column: _Array | Ragged) -> Fingerprint:
    """Of the numbers, how many they are, and their type: the same bytes of another type are other numbers."""
    hasher = xxhash.xxh3_128()
    for array in (column.offsets, column.values) if isinstance(column, Ragged) else (column,):
        hasher.update(f"{array.dtype.str}:{len(array)};".encode())
        hasher.update(array.view(np.uint8).data)
    return hasher.hexdigest()


def _to_arrow(column: _Array | Ragged) -> Any:
    import pyarrow as pa

    if isinstance(column, Ragged):
        return pa.LargeListArray.from_arrays(pa.array(column.offsets), pa.array(column.values))
    return pa.array(column)


class Table:
    """An open table. Arrays are read-only views of the mapped file, which stays mapped while they live.

    Attributes:
        path: of the file.
        description: what was written beside the columns.
        checksummed: whether the file has checksums; those of earlier versions have none.
    """

    def __init__(
        self, path: str, batch: Any, description: dict[str, Any], sums: Mapping[str, Fingerprint] | None
    ) -> None:
        self.path = path
        self.description = description
        self.checksummed = sums is not None
        self._batch = batch
        self._unchecked = dict(sums or {})

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    @property
    def names(self) -> list[str]:
        """Names of the columns, in file order."""
        return list(self._batch.schema.names)

    def flat(self, name: str, *, checked: bool = True) -> _Array:
        """One value per row.

        Args:
            name: of the column.
            checked: hold it against its checksum, which reads the whole column the first time.

        Raises:
            KeyError: no such column.
            CorruptFileError: other numbers than were written.
        """
        array = self._read(name, _flat)
        if checked:
            self._check(name, array)
        return array

    def ragged(self, name: str, *, checked: bool = True) -> Ragged:
        """Several values per row; arguments and errors as of ``flat``."""
        rows = self._read(name, _ragged)
        if checked:
            self._check(name, rows)
        return rows

    def _read(self, name: str, view: Callable[[Any], _Column]) -> _Column:
        import pyarrow as pa

        try:
            return view(self._batch.column(name))
        except (pa.ArrowException, AttributeError, ValueError) as error:
            raise CorruptFileError(f"{self.path} is damaged: column {name!r} {_first_line(error)}") from error

    def _check(self, name: str, column: _Array | Ragged) -> None:
        wanted = self._unchecked.get(name)
        if wanted is not None and _checksum(column) != wanted:
            raise CorruptFileError(f"{self.path} is damaged: column {name!r} has other numbers than were written")
        self._unchecked.pop(name, None)


def _flat(column: Any) -> _Array:
    if column.null_count:
        raise ValueError("has holes")
    array: _Array = column.to_numpy(zero_copy_only=column.type != "bool")  # booleans are stored as bits
    return array


def _ragged(column: Any) -> Ragged:
    if column.null_count:
        raise ValueError("has holes")
    offsets = column.offsets.to_numpy(zero_copy_only=True)
    return Ragged(column.values.to_numpy(zero_copy_only=True), offsets)


def open_table(path: str | os.PathLike[str]) -> Table:
    """Map a table into memory and check its description.

    Raises:
        SourceNotFoundError: no such file.
        CorruptFileError: the file is cut short or damaged, or is no table of ours.
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
        sums = _sums(metadata)
        if sums is not None and (sums.pop(_DESCRIPTION, None), sorted(sums)) != (
            fingerprint_bytes(metadata[_KEY]),
            sorted(reader.schema.names),
        ):
            raise CorruptFileError(f"{name} is damaged: its description is not the one that was written")
        description = json.loads(metadata[_KEY])
        batch = reader.get_batch(0)
        batch.validate()
        return Table(name, batch, description, sums)
    except CorruptFileError:
        raise
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{name}: no such file") from error
    except (pa.ArrowException, MemoryError, ValueError, OSError) as error:
        raise CorruptFileError(f"{name} cannot be read as a table of brimful: {_first_line(error)}") from error


def _sums(metadata: Mapping[bytes, bytes]) -> dict[str, Fingerprint] | None:
    """Checksums by name of the column, or None in a file of an earlier version."""
    if set(metadata) == {_KEY}:
        return None
    sums: Any = json.loads(metadata.get(_SUMS, b"null"))
    return sums if isinstance(sums, dict) else {}  # none that fits: metadata of a name that we do not write


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0]
