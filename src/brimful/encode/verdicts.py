"""Kept verdicts: what equaled its reference is not compared again, what differed is not used again.

One small file in the cache for each tokenizer or template, named by its content and by the versions
compared. The versions of Transformers that were compared at the release are listed here.
"""

import contextlib
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
    "models/auto/tokenization_auto.py",
    "models/qwen2/tokenization_qwen2.py",
    "tokenization_utils_base.py",
    "tokenization_utils_tokenizers.py",
    "utils/chat_template_utils.py",
)
"""Files of Transformers that load a tokenizer and render a conversation."""

_TRANSFORMERS = {"579029cc85788a78019232db2ae24063": "5.23.0"}
"""Fingerprints of these files, and the newest version that has them.

``tests/fast/test_tokenizer_files.py`` checks whether an installed version belongs here.
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

    It reads ``tokenizer.json`` as ``fast.tokenizer_files`` does, and gives templates the variables
    that ``jinja_templates`` gives.
    """
    return transformers_digest() in _TRANSFORMERS


def _path(subject: Any) -> Path:
    return cache_dir() / "proofs" / f"{fingerprint_of(subject)}.json"


def load_verdict(subject: Any) -> Any:
    """Return the result of an earlier comparison; None without one.

    Args:
        subject: what was compared, with versions: anything that JSON can hold.
    """
    try:
        return json.loads(read_plain(_path(subject)))
    except (OSError, ValueError):
        return None


def save_verdict(subject: Any, result: Any) -> None:
    """Keep the result of a comparison; a cache that cannot be written only costs time."""
    with contextlib.suppress(OSError), atomic_file(_path(subject)) as file:
        file.write(json.dumps(result).encode())
