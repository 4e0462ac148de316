"""Fingerprints: digits that identify ordered contents and settings.

A fingerprint is 32 hexadecimal digits of XXH3-128. It covers content and settings only, never a
path, a time or an environment variable, so that a copied data set keeps its fingerprint. It is for
recognizing contents, not for security.

>>> fingerprint_of({"capacity": 8192, "overflow": "drop"}) == fingerprint_of({"overflow": "drop", "capacity": 8192})
True
>>> short(fingerprint_of([1, 2, 3]))
'41396dc'
"""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import xxhash

from brimful.base.typing import Fingerprint

_CHUNK = 1 << 20
"""Elements of an array that are hashed at a time."""


def canonical_json(value: Any) -> bytes:
    """Return JSON with sorted keys and no spaces, so that equal values have equal bytes.

    Bytes, such as an image in a row, are replaced by their fingerprint.

    >>> canonical_json({"b": 1, "a": [True, None]})
    b'{"a":[true,null],"b":1}'
    """
    text = json.dumps(
        value,
        sort_keys=True,
        separators=(",", ":"),
        ensure_ascii=False,
        allow_nan=False,
        default=_named_bytes,
    )
    # Half of a surrogate pair can occur in JSON. It is not valid UTF-8 but needs a fingerprint too.
    return text.encode("utf-8", "surrogatepass")


def _named_bytes(value: Any) -> dict[str, str]:
    if isinstance(value, (bytes, bytearray, memoryview)):
        return {"bytes": fingerprint_bytes(bytes(value))}
    raise TypeError(f"Object of type {type(value).__name__} is not JSON serializable")


def fingerprint_of(value: Any) -> Fingerprint:
    """Return the fingerprint of any value that JSON can hold."""
    return fingerprint_bytes(canonical_json(value))


def fingerprint_bytes(data: bytes | memoryview) -> Fingerprint:
    """Return the fingerprint of a run of bytes."""
    return xxhash.xxh3_128_hexdigest(data)


def fingerprint_stream(pieces: Iterable[bytes | memoryview]) -> Fingerprint:
    """Return the fingerprint of bytes that come in pieces; it equals the fingerprint of the joined
    bytes.

    >>> fingerprint_stream([b"ab", b"c"]) == fingerprint_bytes(b"abc")
    True
    """
    hasher = xxhash.xxh3_128()
    for piece in pieces:
        hasher.update(piece)
    return hasher.hexdigest()


def short_digest(data: bytes) -> int:
    """Return 63 bits of XXH3-64: a number that fits int64, for columns that identify names and
    states.
    """
    return xxhash.xxh3_64_intdigest(data) >> 1


def fingerprint_array(array: np.ndarray[Any, Any]) -> Fingerprint:
    """Return the fingerprint of an array's shape and values and, unless they are integers, its
    dtype.

    Integers are widened to int64 chunk by chunk, so that int32 and int64 arrays with equal numbers
    agree. Any other array is hashed as its bytes and the name of its dtype: 0.25 differs from 0.75,
    1.0 from 1 and float32 from float64.

    Raises:
        TypeError: an array of Python objects, whose bytes are addresses.

    >>> fingerprint_array(np.array([1, 2], dtype=np.int32)) == fingerprint_array(np.array([1, 2]))
    True
    >>> fingerprint_array(np.array([0.25])) == fingerprint_array(np.array([0.75]))
    False
    """
    if array.dtype.hasobject:
        raise TypeError(f"an array of {array.dtype} has no fingerprint: give numbers")
    hasher = xxhash.xxh3_128()
    hasher.update(f"{array.ndim}:{array.shape}".encode())
    dtype = np.dtype("<i8") if _within_int64(array) else array.dtype.newbyteorder("<")
    if dtype != np.dtype("<i8"):
        hasher.update(f":{dtype.str}".encode())
    # In chunks: a conversion copies its input, which must stay small for an array of a billion
    # numbers.
    flat = array.reshape(-1)
    for start in range(0, len(flat), _CHUNK):
        hasher.update(
            np.ascontiguousarray(flat[start : start + _CHUNK], dtype=dtype).view(np.uint8).data
        )
    return hasher.hexdigest()


def _within_int64(array: np.ndarray[Any, Any]) -> bool:
    """Return true if all elements are integers that int64 holds."""
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.size:
        return int(array.max()) < 2**63
    return array.dtype.kind in "iu"


def short(fingerprint: Fingerprint) -> str:
    """Return the first seven digits, for display."""
    return fingerprint[:7]


def differing_keys(settings: Mapping[str, Any], other_settings: Mapping[str, Any]) -> list[str]:
    """Return the keys on which two settings differ, sorted, for error messages.

    >>> differing_keys({"capacity": 1, "seed": 0}, {"capacity": 2, "seed": 0, "lanes": 1})
    ['capacity', 'lanes']
    """
    absent = object()
    keys = {*settings, *other_settings}
    return sorted(
        key for key in keys if settings.get(key, absent) != other_settings.get(key, absent)
    )
