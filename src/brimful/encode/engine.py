"""The libraries with which an encoder encodes: their names, whether they are trusted, and their reference.

An encoder without faster libraries needs none of this: its default ``Engine`` says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brimful.encode.encoder import Encoder


class Engine:
    """The libraries of an encoder; this base class is for encoders without faster ones.

    Args:
        make_reference: returns the same encoder with the libraries that define its tokens; called once, when needed.
        make_light: returns the same encoder without libraries that take long to load; the reference if None.
    """

    def __init__(self, make_reference: Callable[[], Encoder], make_light: Callable[[], Encoder] | None = None) -> None:
        self._make_reference, self._make_light = make_reference, make_light

    @cached_property
    def reference(self) -> Encoder:
        """The same encoder with the libraries that define its tokens; the encoder itself if it uses no faster ones."""
        return self._make_reference()

    @cached_property
    def light(self) -> Encoder:
        """The same encoder for few samples, without libraries that take longer to load than the encoding."""
        return self.reference if self._make_light is None else self._make_light()

    @property
    def name(self) -> str:
        """Names and versions of the libraries that encode, for display; empty if there is nothing to report."""
        return ""

    @property
    def id(self) -> str:
        """Versions of the faster libraries that encode; empty without any."""
        return ""

    @property
    def uses_threads(self) -> bool:
        """True if one process keeps several cores busy most of the time: library threads encode, with little Python."""
        return False

    def trusts(self, engine_id: str) -> bool:
        """Return false for faster libraries that were found to encode differently than the reference."""
        return True

    def distrust(self, engine_id: str, reason: str) -> None:
        """Never encode with faster libraries of these versions again, nor use what they encoded."""
        raise NotImplementedError(f"{type(self).__name__} has no faster libraries")

    def load(self) -> None:
        """Load what encoding needs, now."""
        return

    def warm_up(self) -> None:
        """Begin to load what encoding needs, if that can run during other work."""
        return

    @property
    def preload(self) -> Mapping[str, Mapping[str, str]]:
        """Modules that worker processes need, with the variables of the environment that each reads."""
        return {}
