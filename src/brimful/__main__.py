"""The program: ``brimful``, or ``python -m brimful`` if the folder of scripts is not on the
path.
"""

import _signal  # type: ignore[import-not-found]  # built in, so it needs no loading

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    # Until a thread of the program hears signals, Ctrl-C ends it without a traceback of the running
    # import.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import os
import re
import sys
from typing import TextIO

from brimful.base.execute.serving import collect_rarely
from brimful.base.stopping import end, end_at_signals, leave


def main() -> None:
    """Run the command line of this process and exit; signals end it at once, even while it
    loads.
    """
    end_at_signals()
    for stream in filter(None, (sys.stdout, sys.stderr)):
        _escape(stream)
    try:
        _tune_for(*sys.argv[1:2])
        from brimful.cli import main as run_command

        run_command()
    except SystemExit as exit:
        leave(exit.code)
    finally:
        end()


_CONTROLS = "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]"
"""Characters that a terminal obeys: C0 but for tabs and ends of lines, C1, and ones that end lines
or turn the direction of text. Bytes of names that are not UTF-8 are in the last range.
"""


def _escape(stream: TextIO) -> None:
    """Make a stream of this process write control characters as JSON does, such as ``\\u001b``.

    Names, settings and texts of files that others wrote come to it in lines, JSON, warnings and
    tracebacks.
    """
    # A moving bar returns to the beginning of its line before and after what it writes.
    moves = "(?!\\A\r|\r\\Z)" if stream.isatty() else ""
    pattern, write = re.compile(moves + _CONTROLS), stream.write
    stream.write = lambda text: write(  # type: ignore[method-assign]
        pattern.sub(lambda match: f"\\u{ord(match[0]):04x}", text)
    )
    # Tracebacks of Python 3.13 have colors, which are control characters.
    os.environ.setdefault("PYTHON_COLORS", "0")


def _tune_for(command: str = "") -> None:
    """Set up this process for a command that only packs; this comes before NumPy is imported."""
    if command in ("pack", "measure"):
        # They multiply no matrices, and idle threads of NumPy's OpenBLAS spin for a tenth of a
        # second.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        collect_rarely()


if __name__ == "__main__":
    main()
