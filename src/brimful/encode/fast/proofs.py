"""Memory of comparisons: what equaled its reference is not compared again, what differed is not trusted again.

One small file in the cache for each tokenizer or template, named by its content and by the versions compared.
"""

import json
from pathlib import Path
from typing import Any

from brimful.base.atomic_file import atomic_file
from brimful.base.cache import cache_dir
from brimful.base.fingerprint import fingerprint_of
from brimful.encode.known_libraries import RELEASED_PROOFS


def _path(subject: Any) -> Path:
    return cache_dir() / "proofs" / f"{fingerprint_of(subject)}.json"


def recall(subject: Any) -> Any:
    """Return the result of an earlier comparison, here or before the release; None without one.

    Args:
        subject: what was compared, with versions: anything that JSON can hold.
    """
    try:
        return json.loads(_path(subject).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {"reason": ""} if fingerprint_of(subject) in RELEASED_PROOFS else None


def remember(subject: Any, result: Any) -> None:
    """Keep the result of a comparison; a cache that cannot be written only costs time."""
    path = _path(subject)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path) as file:
            file.write(json.dumps(result, ensure_ascii=True).encode())
    except OSError:
        return
