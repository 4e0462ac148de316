"""The program: ``brimful``, or ``python -m brimful`` if the folder of scripts is not on the path."""

import _signal  # type: ignore[import-not-found]  # built in, so it needs no loading

if _signal.getsignal(_signal.SIGINT) is _signal.default_int_handler:
    # Until a thread of the program hears signals, Ctrl-C ends it without a traceback of the running import.
    _signal.signal(_signal.SIGINT, _signal.SIG_DFL)

import sys

from brimful.stopping import end, end_at_signals, leave


def main() -> None:
    """Run the command line of this process and exit; signals end it at once, even while it loads."""
    end_at_signals()
    try:
        # This comes first: a tokenizer is loaded while the command is imported.
        from brimful.cli.early_start import start_early

        start_early(sys.argv[1:])
        from brimful.cli import main as run_command

        run_command()
    except SystemExit as exit:
        leave(exit.code)
    finally:
        end()


if __name__ == "__main__":
    main()
