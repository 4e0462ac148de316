"""Labelled places where the fault tests end the process."""

__all__ = ["reach"]


def reach(label: str) -> None:
    """Pass the place of that label. Does nothing.

    ``brimful.testing.faults`` replaces this function in a child process; nothing in production code reads a switch.
    """
