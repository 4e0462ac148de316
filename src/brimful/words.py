"""Numbers as people read them."""

from __future__ import annotations

__all__ = ["counted"]


def counted(number: int, noun: str) -> str:
    """A number with its noun, in the plural where it asks for it.

    >>> counted(1, "shard"), counted(1200, "pack"), counted(0, "sample")
    ('1 shard', '1,200 packs', '0 samples')
    """
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"
