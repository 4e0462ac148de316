"""Labeled points of a write at which the fault tests end the process."""


def reach(label: str) -> None:
    """Pass the point of that label, which does nothing.

    Fault tests replace this function in a child process; nothing in production code reads a switch.
    """
