"""Worker processes' server, started before the command is even loaded, for jobs that will need it.

It takes two seconds to import what workers need and to load the tokenizer; the command meanwhile is loaded, and opens the
data.
"""

import os
from collections.abc import Sequence
from itertools import pairwise

_COMMANDS = ("pack", "measure")

_MIN_BYTES = 24 << 20
"""Bytes of data from which on a job has more blocks than one process measures."""


def start_processes_early(arguments: Sequence[str]) -> None:
    """Start the server if the command line names large files and the directory of a tokenizer."""
    if not arguments or arguments[0] not in _COMMANDS or not {"--help", "-h", "--no-fast"}.isdisjoint(arguments):
        return
    options = dict(pairwise(arguments))
    tokenizer = os.path.expanduser(options.get("--tokenizer", ""))
    is_large = sum(os.path.getsize(path) for path in arguments[1:] if os.path.isfile(path)) >= _MIN_BYTES
    if is_large and os.path.isdir(tokenizer) and options.get("--num-proc") != "1":
        from brimful.execute.workers import fresh_processes

        variables = {"BRIMFUL_PRELOAD_TOKENIZER": os.path.realpath(tokenizer)}
        fresh_processes({"brimful.encode.preload": variables, "brimful.measure.block": {}})
