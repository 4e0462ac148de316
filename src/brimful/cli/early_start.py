"""Early loading of the tokenizer, before the command is imported, for jobs that will need it.

Loading takes a second, in a thread of this process or in the server of worker processes. Meanwhile the command is
imported and opens the data.
"""

import contextlib
import os
from collections.abc import Sequence
from itertools import pairwise

from brimful.errors import BrimfulError
from brimful.execute import available_cores
from brimful.execute.garbage import collect_rarely
from brimful.preloading import (
    ONE_PROCESS_BLOCKS,
    ONE_PROCESS_BYTES,
    TOKENIZER,
    USUAL_ROW_BYTES,
    begin_to_load,
    is_small,
)

_COMMANDS = ("pack", "measure")

_EXCLUDED = frozenset(("--help", "-h", "--no-fast", "--chat-template"))
"""Arguments with which nothing is loaded, or something else."""

_TEXT_OF_A_BYTE = {".gz": 4, ".zst": 4, ".parquet": 3}
"""Bytes of text per byte of a compressed file of dialogues, by file suffix."""


def start_early(arguments: Sequence[str]) -> None:
    """Start to load if the command line names data and the directory of a tokenizer.

    Little data is encoded by the reference library, which the command loads; more data by the fast library in
    this process; and large data by workers.
    """
    words = [part for word in arguments for part in word.split("=", 1)]
    if not words or words[0] not in _COMMANDS:
        return
    # These commands multiply no matrices, and idle threads of NumPy's OpenBLAS spin for a tenth of a second.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    collect_rarely()
    if not _EXCLUDED.isdisjoint(words):
        return
    options = dict(pairwise(words))
    tokenizer = os.path.expanduser(options.get("--tokenizer", ""))
    files = [path for path in words[1:] if os.path.isfile(path)]
    num_bytes = sum(map(_num_bytes, files))
    if not num_bytes or not os.path.isdir(tokenizer):
        return
    if is_small(num_bytes, 0) and is_small(num_bytes, sum(map(_num_rows, files))):
        return  # the reference encodes it, and holds the interpreter while it is loaded
    if (options.get("--num-proc") or _num_processes(files, num_bytes)) == "1":
        begin_to_load(tokenizer)
    elif num_bytes >= ONE_PROCESS_BYTES:
        from brimful.execute.workers import fresh_processes

        variables = {TOKENIZER: os.path.realpath(tokenizer)}
        fresh_processes({"brimful.measure.block": {}, "brimful.encode.preload": variables})


def _num_processes(files: Sequence[str], num_bytes: int) -> str:
    """Return the number of processes that a job starts by default, as ``--num-proc`` would give it."""
    if num_bytes >= ONE_PROCESS_BYTES and all(path.endswith(".parquet") for path in files):
        from brimful.sources.parquet import ParquetRows

        # Blocks are whole row groups, and a large file may have only one. The job refuses files that are not Parquet.
        with contextlib.suppress(BrimfulError):
            sizes = [size for path in files for size in ParquetRows(path).block_bytes]
            if len(sizes) <= ONE_PROCESS_BLOCKS or sum(sizes) < ONE_PROCESS_BYTES:
                return "1"
    return "1" if num_bytes < ONE_PROCESS_BYTES else str(available_cores())


def _num_bytes(path: str) -> int:
    """Return the bytes of text in a file; an estimate if it is compressed."""
    return os.path.getsize(path) * _TEXT_OF_A_BYTE.get(os.path.splitext(path)[1], 1)


def _num_rows(path: str) -> int:
    """Return the number of rows of a small file of JSON lines; an estimate for other files."""
    if not path.endswith((".jsonl", ".ndjson")):
        return _num_bytes(path) // USUAL_ROW_BYTES
    with open(path, "rb") as file:
        return file.read().count(b"\n")
