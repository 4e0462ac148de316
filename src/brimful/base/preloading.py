"""The fast tokenizer of a process, loaded once; the server of worker processes loads it during its
imports.
"""

import contextlib
import os
import threading
from pathlib import Path
from typing import Any

STATE = "BRIMFUL_PRELOAD_STATE"
"""Environment variable: file of the state that the server of worker processes loads."""

_tokenizers: dict[str, Any] = {}
_lock = threading.Lock()


def fast_tokenizer(state: str) -> Any:
    """Return the tokenizer of ``fastokens``, made once in a process and inherited by the processes
    forked from it.

    Args:
        state: the tokenizer as JSON, as ``tokenizers`` writes it.

    Raises:
        ImportError: the library is not installed.
        ValueError: the library does not support this kind of tokenizer.
    """
    from fastokens._native import Tokenizer

    with _lock:
        if state not in _tokenizers:
            _tokenizers.clear()  # one takes some hundred megabytes, and a job has only one
            _tokenizers[state] = Tokenizer.from_json_str(state)
        return _tokenizers[state]


def _load() -> None:
    with contextlib.suppress(Exception):  # the job itself reports it
        fast_tokenizer(Path(os.environ[STATE]).read_text(encoding="utf-8"))


loading_thread = threading.Thread(target=_load)
"""Joined by ``encode.fast.preload``, before the server forks."""

if os.environ.get(STATE):
    loading_thread.start()
