"""The way from the builder to its followers: small named documents, and nothing that anybody has to wait in.

No operation blocks on another rank, so no collective is open while the builder works: a build may take longer than any
timeout of a process group.
"""

from __future__ import annotations

import abc

STATUS = "status"
"""Name of the builder's document."""


class Channel(abc.ABC):
    """Documents by name that one rank writes and the others read, and names that are told and counted."""

    carries_files = False
    """True if whole files may go through it."""

    @abc.abstractmethod
    def put(self, name: str, data: bytes) -> None:
        """Write a document, whole."""

    @abc.abstractmethod
    def get(self, name: str) -> bytes | None:
        """Return a document, or None if there is none; at once.

        Raises:
            TaskFailedError: the channel itself is gone, with the process that kept it.
        """

    @abc.abstractmethod
    def delete(self, name: str) -> None:
        """Remove a document, if there is one."""

    @abc.abstractmethod
    def tell(self, topic: str, who: str) -> None:
        """Add one name to a topic."""

    @abc.abstractmethod
    def told(self, topic: str) -> int:
        """Return how many names were added to a topic."""

    def ask(self) -> str | None:
        """Ask for an answer, where documents of earlier jobs may lie; return the nonce that it must have, or None."""
        return None

    def asked(self) -> tuple[str, ...]:
        """Return the nonces of those who asked."""
        return ()

    def answered(self, nonce: str) -> None:
        """Take a question back."""
        return

    def clone(self) -> Channel:
        """Return the channel for another thread."""
        return self
