"""The command line: ``brimful COMMAND``. One file per command.

An error with a known reason is one line on standard error and exit code 2; nothing is lost, and the
same command can be run again.
"""

import sys
from collections.abc import Sequence
from typing import NoReturn

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run one command and exit with 0, 2 for an explained error, or 130 after Ctrl-C.

    It runs in the caller's process; the program itself starts in ``brimful.__main__``, which
    handles signals in a thread.

    Args:
        arguments: command-line arguments without the program's name; the arguments of this process
            if None.
    """
    argv = sys.argv[1:] if arguments is None else arguments
    from brimful.cli.program import run

    run(argv)
