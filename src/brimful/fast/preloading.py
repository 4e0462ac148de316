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

TOKENIZER = "BRIMFUL_PRELOAD_TOKENIZER"
"""Environment variable: directory or hub id of the tokenizer that ``fast.preload_tokenizer`` loads.
"""

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


def preload(path: str, state_path: str) -> dict[str, dict[str, str]]:
    """Return the modules that the server imports, each with the variables that it reads.

    In this order: a thread loads the fast tokenizer while the server imports the rest, and is
    joined at the end.

    Args:
        path: directory or hub id of the tokenizer.
        state_path: file of its state; empty if there is none.
    """
    return {__name__: {STATE: state_path}, f"{__package__}.preload_tokenizer": {TOKENIZER: path}}


def _load() -> None:
    with contextlib.suppress(Exception):  # the job itself reports it
        fast_tokenizer(Path(os.environ[STATE]).read_text(encoding="utf-8"))


loading_thread = threading.Thread(target=_load)
"""Joined by ``preload_tokenizer``, before the server forks."""

if os.environ.get(STATE):
    loading_thread.start()
