"""Memory of comparisons: what equaled its reference is not compared again, what differed is not
trusted again.

One small file in the cache for each tokenizer or template, named by its content and by the versions
compared. What was compared at the release is listed here.
"""

import importlib.util
import json
from functools import cache
from pathlib import Path
from typing import Any

from brimful.base.atomic_file import atomic_file
from brimful.base.fingerprint import fingerprint_bytes, fingerprint_of
from brimful.base.locks import cache_dir
from brimful.base.plain_files import read_plain

_FILES = (
    *(
        "models/auto/tokenization_auto.py",
        "models/qwen2/tokenization_qwen2.py",
        "tokenization_utils_base.py",
    ),
    *("tokenization_utils_tokenizers.py", "utils/chat_template_utils.py"),
)
"""Files of Transformers that load a tokenizer and render a conversation."""

_TRANSFORMERS = {
    "579029cc85788a78019232db2ae24063": "5.23.0",
}
"""Fingerprints of these files, and the newest version that has them.

``tests/encode/test_tokenizer_files.py`` checks whether an installed version belongs here.
"""

RELEASED_PROOFS = {
    "99f3ca8dec726038ba7fabfb7d11569e": "Qwen2.5, fastokens 0.3.5, tokenizers 0.23.3",
}
"""Tokenizers for which the fast library was found equal to the reference, by the fingerprint of
what was compared.

The fingerprint is the one in ``proofs``: of the tokenizer's state and the versions of both
libraries.
"""


@cache
def transformers_digest() -> str:
    """Return the fingerprint of the installed Transformers' files, without importing it; empty if a
    file is missing.
    """
    spec = importlib.util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return ""
    try:
        return fingerprint_of(
            [fingerprint_bytes((Path(spec.origin).parent / name).read_bytes()) for name in _FILES]
        )
    except OSError:
        return ""


def knows_transformers() -> bool:
    """Return true if the installed Transformers is one that was compared.

    It reads ``tokenizer.json`` as ``tokenizer_files`` does, and gives templates the variables that
    ``jinja_templates`` gives.
    """
    return transformers_digest() in _TRANSFORMERS


def _path(subject: Any) -> Path:
    return cache_dir() / "proofs" / f"{fingerprint_of(subject)}.json"


def recall(subject: Any) -> Any:
    """Return the result of an earlier comparison, here or before the release; None without one.

    Args:
        subject: what was compared, with versions: anything that JSON can hold.
    """
    try:
        return json.loads(read_plain(_path(subject)))
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
