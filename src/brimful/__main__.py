"""The program: ``brimful``, or ``python -m brimful`` if the folder of scripts is not on the
path.
"""

import _signal  # type: ignore[import-not-found]  # built in, so it needs no loading

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    # Until a thread of the program hears signals, Ctrl-C ends it without a traceback of the running
    # import.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import os
import sys

from brimful.base.execute.serving import collect_rarely
from brimful.base.stopping import end, end_at_signals, leave


def main() -> None:
    """Run the command line of this process and exit; signals end it at once, even while it
    loads.
    """
    end_at_signals()
    try:
        _tune_for(*sys.argv[1:2])
        from brimful.cli import main as run_command

        run_command()
    except SystemExit as exit:
        leave(exit.code)
    finally:
        end()


def _tune_for(command: str = "") -> None:
    """Set up this process for a command that only packs; this comes before NumPy is imported."""
    if command in ("pack", "measure"):
        # They multiply no matrices, and idle threads of NumPy's OpenBLAS spin for a tenth of a
        # second.
        os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
        collect_rarely()


if __name__ == "__main__":
    main()
