"""Early loading of the tokenizer, which takes a second: in the program, or in the server that forks its workers.

The fast library builds its tokenizer in a thread, without the interpreter, while the process goes on importing. The
server imports this module first, then the rest of what workers need (``encode.preload``). Workers are forked when that
is done, and inherit the loaded objects.
"""

import contextlib
import hashlib
import os
import threading
from pathlib import Path
from typing import Any

from brimful.cache import cache_dir

TOKENIZER = "BRIMFUL_PRELOAD_TOKENIZER"
"""Environment variable: directory of the tokenizer to load."""

TRANSFORMERS = "BRIMFUL_PRELOAD_TRANSFORMERS"
"""Environment variable: set if Transformers renders the texts."""

_SMALL_BYTES = 5_500_000
"""Bytes of text that the reference encodes on two cores in the time that the fast library takes to load."""

_ROW_BYTES = 480
"""Bytes of text that take the reference as long as the fixed cost of a row."""

USUAL_ROW_BYTES = 1400
"""Assumed bytes of a row if its size is unknown: the size of a dialogue."""

ONE_PROCESS_BYTES = 24 << 20
"""Bytes of text that one process encodes with the fast library and its threads before other processes would start."""

ONE_PROCESS_BLOCKS = 3
"""Blocks that one process measures, with any library, before other processes would start."""

_tokenizers: dict[bytes, Any] = {}
_lock = threading.Lock()


def fast_tokenizer(state: bytes) -> Any:
    """Return the tokenizer of ``fastokens``, made once in a process and inherited by the processes forked from it.

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
            _tokenizers[state] = Tokenizer.from_json_str(state.decode())
        return _tokenizers[state]


def is_small(num_bytes: int, num_rows: int) -> bool:
    """Return true for a job so small that the reference encodes it before the fast library would be loaded.

    >>> is_small(3_200_000, 1_000), is_small(3_200_000, 6_000)
    (True, False)
    """
    return num_bytes + num_rows * _ROW_BYTES < _SMALL_BYTES


def state_note(directory: str) -> Path:
    """Return the file that names the state of a directory's tokenizer, as the last job found it.

    The file is a guess that saves reading the directory. A wrong guess does no harm: a tokenizer is looked up by its
    state.
    """
    digest = hashlib.blake2b(os.path.realpath(directory).encode("utf-8", "surrogateescape"), digest_size=16)
    return cache_dir() / "tokenizers" / f"{digest.hexdigest()}.state"


def begin_to_load(directory: str) -> None:
    """Start to load the tokenizer of a directory, as the last job found it, in a thread of this process."""
    threading.Thread(target=_load, args=(directory,), daemon=True).start()


def _load(directory: str) -> None:
    # A tokenizer that cannot be loaded is not an error here: the job itself reports it.
    with contextlib.suppress(Exception):
        fast_tokenizer(Path(state_note(directory).read_text(encoding="utf-8")).read_bytes())


if os.environ.get(TOKENIZER):
    _thread = threading.Thread(target=_load, args=(os.environ[TOKENIZER],))
    _thread.start()

    # Hooks before a fork run in reverse order of registration. These modules register hooks that take locks. The thread
    # may need those locks to end, so the hooks must run after the one that waits for the thread.
    import concurrent.futures.thread  # noqa: F401
    import logging  # noqa: F401

    os.register_at_fork(before=_thread.join)
