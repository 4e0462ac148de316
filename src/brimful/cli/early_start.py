"""Worker processes' server, started before the command is even loaded, for jobs that will need it.

It takes two seconds to import what workers need and to load the tokenizer; the command meanwhile is loaded, and opens the
data.
"""

import os
from collections.abc import Sequence
from itertools import pairwise

from brimful.execute import available_cores
from brimful.preloading import TOKENIZER

_COMMANDS = ("pack", "measure")

_EXCLUDED = frozenset(("--help", "-h", "--no-fast", "--chat-template"))
"""Words with which nothing has to be loaded, or something else."""

_MIN_BYTES = 24 << 20
"""Bytes of data from which on a job has more blocks than one process measures."""


def start_processes_early(arguments: Sequence[str]) -> None:
    """Start the server if the command line names large files and the directory of a tokenizer."""
    words = [part for word in arguments for part in word.split("=", 1)]
    if not words or words[0] not in _COMMANDS or not _EXCLUDED.isdisjoint(words):
        return
    options = dict(pairwise(words))
    tokenizer = os.path.expanduser(options.get("--tokenizer", ""))
    is_large = sum(os.path.getsize(path) for path in words[1:] if os.path.isfile(path)) >= _MIN_BYTES
    if is_large and os.path.isdir(tokenizer) and options.get("--num-proc", str(available_cores())) != "1":
        from brimful.execute.workers import fresh_processes

        variables = {TOKENIZER: os.path.realpath(tokenizer)}
        fresh_processes({"brimful.measure.block": {}, "brimful.encode.preload": variables})
