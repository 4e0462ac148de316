"""Loading that takes a second, begun before all else: by the program, or by the server from which its workers are forked.

The fast library makes its tokenizer in a thread, without Python, while a process goes on importing. The server imports this
module first, and the rest of what workers need behind it (``encode.preload``). A process is forked when that is done, and
inherits what was loaded.
"""

import contextlib
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

from brimful.cache import cache_dir

TOKENIZER = "BRIMFUL_PRELOAD_TOKENIZER"
"""Variable of the environment: directory of the tokenizer to load."""

TRANSFORMERS = "BRIMFUL_PRELOAD_TRANSFORMERS"
"""Variable of the environment: set if texts are rendered by Transformers."""

_SMALL_BYTES = 5_500_000
"""Bytes of text that the reference encodes on two cores before the fast library is loaded."""

_ROW_BYTES = 480
"""Bytes of text that take the reference as long as what a row costs beside its text."""

USUAL_ROW_BYTES = 1400
"""Bytes of a row where nobody knows them: those of a dialogue."""

ONE_PROCESS_BYTES = 24 << 20
"""Bytes of text that one process encodes with the fast library and its threads before others would have started."""

ONE_PROCESS_BLOCKS = 3
"""Blocks that one process measures before others would have started, however it encodes them."""

_tokenizers: dict[bytes, Any] = {}
_lock = threading.Lock()


def fast_tokenizer(state: bytes) -> Any:
    """Return the tokenizer of ``fastokens``, made once in a process and not again in those forked from it.

    Args:
        state: the tokenizer as ``tokenizers`` writes it, JSON.

    Raises:
        ImportError: the library is not installed.
        ValueError: it does not know this kind of tokenizer.
    """
    from fastokens._native import Tokenizer

    with _lock:
        if state not in _tokenizers:
            _tokenizers.clear()  # one is some hundred megabytes, and a job has one
            _tokenizers[state] = Tokenizer.from_json_str(state.decode())
        return _tokenizers[state]


def is_small(num_bytes: int, num_rows: int) -> bool:
    """Return true for a job so small that no fast library is loaded for it: the reference has encoded it sooner.

    >>> is_small(3_200_000, 1_000), is_small(3_200_000, 6_000)
    (True, False)
    """
    return num_bytes + num_rows * _ROW_BYTES < _SMALL_BYTES


def state_note(directory: str) -> Path:
    """Return the file that names the state of a directory's tokenizer, as the last job found it.

    It is a guess at what will be needed, which takes no reading of the directory: a tokenizer is looked up by its state.
    """
    digest = hashlib.blake2b(os.path.realpath(directory).encode("utf-8", "surrogateescape"), digest_size=16)
    return cache_dir() / "tokenizers" / f"{digest.hexdigest()}.state"


def begin_to_load(directory: str) -> None:
    """Begin to load the tokenizer of a directory in a thread of this process, as the last job found it."""
    threading.Thread(target=_load, args=(directory,), daemon=True).start()


def _load(directory: str) -> None:
    # A tokenizer that cannot be loaded is no error here: the job says so, in its own words.
    with contextlib.suppress(Exception):
        fast_tokenizer(Path(state_note(directory).read_text(encoding="utf-8")).read_bytes())


if os.environ.get(TOKENIZER):
    _thread = threading.Thread(target=_load, args=(os.environ[TOKENIZER],))
    _thread.start()

    # Hooks before a fork run in the reverse order of their registration. These modules register some that take locks; the
    # thread may need those locks to end, so they come behind the hook that waits for it.
    import concurrent.futures.thread  # noqa: F401
    import logging  # noqa: F401

    os.register_at_fork(before=_thread.join)
