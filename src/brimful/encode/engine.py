"""The libraries with which an encoder encodes: their names, whether they are trusted, and the reference behind them.

An encoder that has no faster libraries needs nothing of this: the ``Engine`` that it has by default says so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from brimful.encode.encoder import Encoder


class Engine:
    """The libraries of an encoder; this one is of encoders that have no faster ones.

    Args:
        make_reference: returns the same encoder by the libraries that define its tokens; called once, when it is needed.
        make_light: returns the same encoder without libraries that take long to load; the reference if None.
    """

    def __init__(self, make_reference: Callable[[], Encoder], make_light: Callable[[], Encoder] | None = None) -> None:
        self._make_reference, self._make_light = make_reference, make_light

    @cached_property
    def reference(self) -> Encoder:
        """The same encoder by the libraries that define its tokens; the encoder itself if it uses no faster ones."""
        return self._make_reference()

    @cached_property
    def light(self) -> Encoder:
        """The same encoder for few samples: by no library that takes longer to load than they take to encode."""
        return self.reference if self._make_light is None else self._make_light()

    @property
    def name(self) -> str:
        """Names and versions of the libraries that encode, for people; empty if there is nothing to say."""
        return ""

    @property
    def id(self) -> str:
        """Versions of the faster libraries that encode; empty if there are none."""
        return ""

    @property
    def uses_threads(self) -> bool:
        """True if one process keeps several cores busy for most of its time: threads of a library encode, and little Python."""
        return False

    def trusts(self, engine_id: str) -> bool:
        """Return false for faster libraries that were found to encode otherwise than the reference."""
        return True

    def distrust(self, engine_id: str, reason: str) -> None:
        """Never encode with faster libraries of these versions again, nor use what they encoded."""
        raise NotImplementedError(f"{type(self).__name__} has none")

    def load(self) -> None:
        """Load what encoding needs, now."""
        return

    def warm_up(self) -> None:
        """Begin to load what encoding needs, if that can be done beside other work."""
        return

    @property
    def preload(self) -> Mapping[str, Mapping[str, str]]:
        """Modules that worker processes need, with the variables of the environment that each reads."""
        return {}
