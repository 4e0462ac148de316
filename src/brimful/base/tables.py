"""Memory-mapped columns in one Arrow IPC file: the container of every table that brimful writes.

A table is a set of equally long columns and a JSON description. A column is a flat array, or a
*ragged* one whose rows differ in length. Reading maps the file and returns views: nothing is
copied, and opening takes the same time for ten rows or a billion. Any Arrow reader (polars, DuckDB,
pandas) opens it too.

Everything that is read is checked. The description is compared with its checksum when the file is
opened, a column when it is first requested, which reads all of it once. Code that must open large
tables in milliseconds and checks the arrays in another way later (plans:
``Plan.check_fingerprint``) passes ``checked=False``.

NumPy arrays become Arrow columns and back by their buffers: ``pyarrow.array`` and
``Array.to_numpy`` check whether they
were given a pandas object, and import pandas for that: half a second in every process if it is
installed.

>>> import numpy as np, tempfile, os
>>> path = os.path.join(tempfile.mkdtemp(), "t.arrow")
>>> rows = Ragged(np.array([7, 8, 9], dtype=np.int32), np.array([0, 2, 3]))
>>> write_table(path, {"size": np.array([2, 1]), "ids": rows}, {"unit": "tokens"})
>>> table = open_table(path)
>>> table.description["unit"], table.flat("size").tolist(), table.ragged("ids").row(0).tolist()
('tokens', [2, 1], [7, 8])
"""

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import xxhash

from brimful.base.checks import local_path
from brimful.base.fingerprint import fingerprint_bytes
from brimful.base.plain_files import open_plain
from brimful.base.ragged import offsets_of
from brimful.base.typing import AnyArray, AnyPath, Fingerprint, Offsets
from brimful.errors import CorruptFileError, SourceNotFoundError

_DESCRIPTION_KEY = b"brimful"

_CHECKSUMS_KEY = b"brimful_checksums"

_DESCRIPTION = ""
"""Name of the description among the checksums; no column has an empty name."""


def to_arrow(values: AnyArray) -> Any:
    """Return a column of integers, floats or booleans without a copy; only booleans are copied,
    into bits.

    >>> to_arrow(np.array([True, False])).to_pylist(), to_arrow(np.array([1.5], dtype=np.float32)).type
    ([True, False], DataType(float))
    """
    import pyarrow as pa

    values = np.ascontiguousarray(values)
    stored = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else values
    return pa.Array.from_buffers(
        pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(stored)]
    )


def to_arrow_binary(values: Sequence[bytes]) -> Any:
    """Return a column of byte strings, at most 2 GiB in total; they are copied.

    >>> to_arrow_binary([b"ab", b"", b"c"]).to_pylist()
    [b'ab', b'', b'c']
    """
    import pyarrow as pa

    offsets = offsets_of([len(value) for value in values]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def to_numpy(column: Any) -> AnyArray:
    """Return a read-only view of a column without nulls; booleans, which are stored as bits, are
    copied.

    Raises:
        ValueError: values without a fixed width, such as texts.

    >>> to_numpy(to_arrow(np.array([1, 2], dtype=np.int32))[1:])
    array([2], dtype=int32)
    """
    num_bits = column.type.bit_width
    _, data = column.buffers()
    stop = column.offset + len(column)
    if data is None or stop == 0:
        return np.empty(0, dtype=to_numpy_dtype(column.type))
    if num_bits == 1:
        bits = np.frombuffer(data, dtype=np.uint8)
        return np.unpackbits(bits, count=stop, bitorder="little")[column.offset :].view(np.bool_)
    return np.frombuffer(data, dtype=to_numpy_dtype(column.type), count=stop)[column.offset :]


def to_numpy_dtype(arrow_type: Any) -> np.dtype[Any]:
    """Return the dtype of the values of an Arrow type: booleans, integers or floats.

    ``DataType.to_pandas_dtype`` does the same, and up to Arrow 25 needs pandas for it.

    >>> import pyarrow as pa
    >>> to_numpy_dtype(pa.uint16()), to_numpy_dtype(pa.float32())
    (dtype('uint16'), dtype('float32'))
    """
    # Names are equal but for these: a float of Arrow has 32 bits, and one of NumPy 64.
    names = {"halffloat": "float16", "float": "float32", "double": "float64"}
    return np.dtype(names.get(str(arrow_type), str(arrow_type)))


@dataclass(frozen=True)
class Ragged:
    """Rows of different lengths: row ``i`` is ``values[offsets[i]:offsets[i + 1]]``."""

    values: AnyArray
    offsets: Offsets

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def row(self, index: int) -> AnyArray:
        """Return a view of one row."""
        return self.values[self.offsets[index] : self.offsets[index + 1]]


_Column = TypeVar("_Column", AnyArray, Ragged)


def write_table(
    path: AnyPath,
    columns: Mapping[str, AnyArray | Ragged],
    description: Mapping[str, Any],
    *,
    durable: bool = True,
) -> None:
    """Write one table atomically.

    Args:
        path: the file to appear.
        columns: arrays of integers, floats or booleans by name, all equally long.
        description: any mapping that JSON can hold.
        durable: see ``atomic_file``.

    Raises:
        StoreFullError: no space left; nothing appears.
    """
    import pyarrow as pa

    from brimful.base.atomic_file import atomic_file

    # Checksums cover the values that a reader will see, so they are computed after trimming.
    columns = {name: _trimmed(column) for name, column in columns.items()}
    arrays = {
        name: pa.LargeListArray.from_arrays(to_arrow(column.offsets), to_arrow(column.values))
        if isinstance(column, Ragged)
        else to_arrow(column)
        for name, column in columns.items()
    }
    description_json = json.dumps(description, ensure_ascii=False).encode()
    checksums = {_DESCRIPTION: fingerprint_bytes(description_json)}
    checksums |= {name: _checksum(column) for name, column in columns.items()}
    metadata = {_DESCRIPTION_KEY: description_json, _CHECKSUMS_KEY: json.dumps(checksums).encode()}
    schema = pa.schema(
        [pa.field(name, array.type) for name, array in arrays.items()], metadata=metadata
    )
    batch = pa.record_batch(list(arrays.values()), schema=schema)
    with atomic_file(path, durable=durable) as file, pa.ipc.new_file(file, schema) as writer:
        writer.write_batch(batch)


def _trimmed(column: AnyArray | Ragged) -> AnyArray | Ragged:
    """Return the column contiguous and without values outside all rows, which Arrow does not write
    to the file.
    """
    if not isinstance(column, Ragged):
        return np.ascontiguousarray(column)
    offsets = np.ascontiguousarray(column.offsets, dtype=np.int64)
    first, end = int(offsets[0]), int(offsets[-1])
    return Ragged(
        np.ascontiguousarray(column.values[first:end]), offsets - first if first else offsets
    )


def _checksum(column: AnyArray | Ragged) -> Fingerprint:
    """Return the fingerprint of the numbers, their count and type: equal bytes of another type are
    other numbers.
    """
    hasher = xxhash.xxh3_128()
    for array in (column.offsets, column.values) if isinstance(column, Ragged) else (column,):
        hasher.update(f"{array.dtype.str}:{len(array)};".encode())
        hasher.update(array.view(np.uint8).data)
    return hasher.hexdigest()


@dataclass(eq=False)
class ColumnTable:
    """An open table. Arrays are read-only views of the mapped file, which stays mapped as long as
    they exist.

    Attributes:
        path: the file.
        description: the mapping that was written with the columns.
        fingerprint: of the description and the columns, from their checksums.
    """

    path: str
    description: dict[str, Any]
    fingerprint: Fingerprint
    _batch: Any
    _unchecked: dict[str, Fingerprint]

    def __len__(self) -> int:
        return int(self._batch.num_rows)

    def __contains__(self, name: str) -> bool:
        return name in self.names

    @property
    def names(self) -> list[str]:
        """Names of the columns, in file order."""
        return list(self._batch.schema.names)

    def flat(self, name: str, *, checked: bool = True) -> AnyArray:
        """Return a column of one value per row.

        Args:
            name: the column.
            checked: compare the column with its checksum, which reads all of it the first time.

        Raises:
            KeyError: no such column.
            CorruptFileError: the numbers differ from the written ones.
        """
        return self._read(name, to_numpy, checked)

    def ragged(self, name: str, *, checked: bool = True) -> Ragged:
        """Return a column of several values per row; for arguments and errors, see ``flat``."""
        return self._read(name, _ragged, checked)

    def _read(self, name: str, view: Callable[[Any], _Column], checked: bool) -> _Column:
        import pyarrow as pa

        try:
            column = view(self._batch.column(name))
        except (pa.ArrowException, AttributeError, ValueError) as error:
            raise CorruptFileError(
                f"{self.path} is damaged: column {name!r} {_first_line(error)}"
            ) from error
        if checked and name in self._unchecked:
            if _checksum(column) != self._unchecked[name]:
                raise CorruptFileError(
                    f"{self.path} is damaged: column {name!r} has other numbers than were written"
                )
            # Only now: a damaged column is refused every time it is requested.
            self._unchecked.pop(name, None)
        return column


def _ragged(column: Any) -> Ragged:
    return Ragged(to_numpy(column.values), to_numpy(column.offsets))


def open_table(path: AnyPath) -> ColumnTable:
    """Map a table into memory and check its description.

    Raises:
        SettingsError: the path is a URL.
        SourceNotFoundError: no such file.
        CorruptFileError: the file is truncated or damaged, or brimful did not write it.
    """
    import pyarrow as pa

    name = local_path(path)
    try:
        os.close(open_plain(name))  # a pipe would be waited for
        reader = pa.ipc.open_file(pa.memory_map(name))
        metadata = reader.schema.metadata or {}
        if _DESCRIPTION_KEY not in metadata:
            raise CorruptFileError(f"{name} is an Arrow file that brimful did not write")
        if reader.num_record_batches != 1:
            raise CorruptFileError(
                f"{name} holds {reader.num_record_batches} record batches where one is due"
            )
        # Column names are compared too: the checksum of a renamed column would never be looked up.
        checksums: dict[str, Fingerprint] = json.loads(metadata.get(_CHECKSUMS_KEY, b"{}"))
        is_same = checksums.pop(_DESCRIPTION, None) == fingerprint_bytes(metadata[_DESCRIPTION_KEY])
        if not is_same or sorted(checksums) != sorted(reader.schema.names):
            raise CorruptFileError(
                f"{name} is damaged: its description is not the one that was written"
            )
        description = json.loads(metadata[_DESCRIPTION_KEY])
        batch = reader.get_batch(0)
        batch.validate()
        fingerprint = fingerprint_bytes(metadata.get(_CHECKSUMS_KEY, b""))
        return ColumnTable(name, description, fingerprint, batch, checksums)
    except CorruptFileError:
        raise
    except FileNotFoundError as error:
        raise SourceNotFoundError(f"{name}: no such file") from error
    except (pa.ArrowException, MemoryError, ValueError, OSError) as error:
        raise CorruptFileError(
            f"{name} cannot be read as a table of brimful: {_first_line(error)}"
        ) from error


def _first_line(error: BaseException) -> str:
    return str(error).split("\n", 1)[0]
