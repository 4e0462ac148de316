"""Seam of draws: a request for some samples more often than others, which a wing reads and fulfills."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar


class Draw(ABC):
    """Request for the samples of an epoch: ``PlanSettings.draw``.

    Attributes:
        key: its name in the record of a plan, by which ``base.wings.DRAWS`` finds its class.
        packer: ``module:function`` that draws and packs (``plan.drawn.PackDrawn``).
    """

    key: ClassVar[str]
    packer: ClassVar[str]

    @abstractmethod
    def check(self, settings: Any) -> None:
        """Refuse ``PlanSettings`` that contradict the request.

        Raises:
            SettingsError: names both settings.
        """

    @abstractmethod
    def as_dict(self) -> dict[str, Any]:
        """Return the keywords that make the request, for JSON."""

    @abstractmethod
    def describe(self, record: Mapping[str, Any]) -> str:
        """Return a line of a summary on what was drawn (``PlanOutcome.drawn``)."""
