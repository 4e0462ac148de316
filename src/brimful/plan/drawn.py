"""Result of a draw: drawn samples as items, and their packs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from brimful.plan.items import Items
from brimful.plan.ledger import Ledger
from brimful.plan.packing import Packing, PackResult
from brimful.plan.plan_settings import PlanSettings

Pack: TypeAlias = Callable[[Items, PlanSettings], PackResult[Packing]]
"""The packing of items by the algorithm of the settings."""


class Drawn(NamedTuple):
    """Packs of drawn samples.

    Attributes:
        items: of the packs; a sample that is drawn several times is several items.
        result: packs of these items.
        record: requested and realized draws, for ``PlanOutcome.drawn``.
        ledger: account of the plan; None if every sample is packed once.
    """

    items: Items
    result: PackResult[Packing]
    record: Mapping[str, Any]
    ledger: Ledger | None


PackDrawn: TypeAlias = Callable[..., Drawn]
"""``(table, items, settings, *, sources, uses, pack) -> Drawn``: draws and packs the samples of
``settings.draw``. Pure: no I/O.

``table`` has all input samples, and ``items`` the ones that can be packed. Seed and epoch of the
settings choose the draws. ``sources`` and ``uses`` are as for ``plan_packs``, and ``pack`` is a
``Pack``.
"""
