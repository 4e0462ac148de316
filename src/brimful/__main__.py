"""The program: ``brimful``, or ``python -m brimful`` where the folder of scripts is not on the path."""

from brimful.stopping import end, end_at_signals

__all__ = ["main"]


def main() -> None:
    """Run the command line of this process and exit; signals end it at once, while it still loads too."""
    end_at_signals()
    try:
        from brimful.cli import main as run_command

        run_command()
    finally:
        end()


if __name__ == "__main__":
    main()
