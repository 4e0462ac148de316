"""The command line: ``brimful COMMAND``. One file per command.

An error of a known reason is one line on standard error and exit code 2; nothing is lost, and the same command can
be run again.
"""

import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit: 0, 2 for an error that is explained, 130 after Ctrl-C.

    It runs in the process of its caller; the program itself starts in ``brimful.__main__``, which handles signals by a
    thread.

    Args:
        arguments: of the command line, without the program's name; those of this process if None.
    """
    words = sys.argv[1:] if arguments is None else arguments
    # Not before: ``early_start`` lies in this package, and comes first in a process.
    from brimful.cli.program import run

    run(words)
