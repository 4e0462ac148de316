"""NumPy arrays as Arrow columns and back, without a copy, by their buffers.

``pyarrow.array`` and ``Array.to_numpy`` check whether they were given a pandas object, and import pandas for that: half
a second in every process if it is installed.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.base.ragged import offsets_of

Array = npt.NDArray[Any]


def to_arrow(values: Array) -> Any:
    """Return a column of integers, floats or booleans without a copy; only booleans are copied, into bits.

    >>> to_arrow(np.array([True, False])).to_pylist(), to_arrow(np.array([1.5], dtype=np.float32)).type
    ([True, False], DataType(float))
    """
    import pyarrow as pa

    values = np.ascontiguousarray(values)
    stored = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else values
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [None, pa.py_buffer(stored)])


def to_arrow_binary(values: Sequence[bytes]) -> Any:
    """Return a column of byte strings, at most 2 GiB in total; they are copied.

    >>> to_arrow_binary([b"ab", b"", b"c"]).to_pylist()
    [b'ab', b'', b'c']
    """
    import pyarrow as pa

    offsets = offsets_of([len(value) for value in values]).astype(np.int32)
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(b"".join(values))]
    return pa.Array.from_buffers(pa.binary(), len(values), buffers)


def to_numpy(column: Any) -> Array:
    """Return a read-only view of a column without nulls; booleans, which are stored as bits, are copied.

    Raises:
        ValueError: values without a fixed width, such as texts.

    >>> to_numpy(to_arrow(np.array([1, 2], dtype=np.int32))[1:])
    array([2], dtype=int32)
    """
    num_bits = column.type.bit_width
    _, data = column.buffers()
    stop = column.offset + len(column)
    if data is None or stop == 0:
        return np.empty(0, dtype=column.type.to_pandas_dtype())
    if num_bits == 1:
        bits = np.frombuffer(data, dtype=np.uint8)
        return np.unpackbits(bits, count=stop, bitorder="little")[column.offset :].view(np.bool_)
    return np.frombuffer(data, dtype=column.type.to_pandas_dtype(), count=stop)[column.offset :]
