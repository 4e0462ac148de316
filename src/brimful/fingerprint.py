"""What identifies ordered contents and settings.

A fingerprint is 32 hexadecimal digits of XXH3-128. It is made of content and settings only: never of a
path, a time or an environment variable, so that a copied data set keeps its fingerprint. It is for
recognising things, not for security.

>>> fingerprint_of({"capacity": 8192, "overflow": "drop"}) == fingerprint_of({"overflow": "drop", "capacity": 8192})
True
>>> short(fingerprint_of([1, 2, 3]))
'41396dc'
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import xxhash

from brimful.typing import Fingerprint

__all__ = ["canonical_json", "differing_keys", "fingerprint_array", "fingerprint_bytes", "fingerprint_of", "short"]


def canonical_json(value: Any) -> bytes:
    """JSON with sorted keys and no spaces, so that equal values have equal bytes.

    >>> canonical_json({"b": 1, "a": [True, None]})
    b'{"a":[true,null],"b":1}'
    """
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode(
        "utf-8", "surrogatepass"
    )


def fingerprint_of(value: Any) -> Fingerprint:
    """Fingerprint of any value that JSON can hold."""
    return fingerprint_bytes(canonical_json(value))


def fingerprint_bytes(data: bytes | memoryview) -> Fingerprint:
    """Fingerprint of a run of bytes."""
    return xxhash.xxh3_128_hexdigest(data)


def fingerprint_array(array: np.ndarray[Any, Any]) -> Fingerprint:
    """Fingerprint of an integer array: its values, whatever the width of the dtype.

    Small chunks are widened to int64, so that an int32 and an int64 array of equal numbers agree.

    >>> fingerprint_array(np.array([1, 2], dtype=np.int32)) == fingerprint_array(np.array([1, 2]))
    True
    """
    hasher = xxhash.xxh3_128()
    hasher.update(f"{array.ndim}:{array.shape}".encode())
    flat = array.reshape(-1)
    step = 1 << 20
    for start in range(0, len(flat), step):
        hasher.update(np.ascontiguousarray(flat[start : start + step], dtype="<i8").view(np.uint8).data)
    return hasher.hexdigest()


def short(fingerprint: Fingerprint) -> str:
    """The first seven digits, as shown to people."""
    return fingerprint[:7]


def differing_keys(here: Mapping[str, Any], there: Mapping[str, Any]) -> list[str]:
    """The keys on which two settings differ, sorted; for messages that say which part differs.

    >>> differing_keys({"capacity": 1, "seed": 0}, {"capacity": 2, "seed": 0, "lanes": 1})
    ['capacity', 'lanes']
    """
    missing = object()
    return sorted(key for key in {*here, *there} if here.get(key, missing) != there.get(key, missing))
