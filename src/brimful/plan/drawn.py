"""Result of a draw: drawn samples as items, and their packs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol, TypeAlias

from brimful.base.typing import AnyIntArray
from brimful.lengths.table import LengthTable
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


class PackDrawn(Protocol):
    """Function that draws the samples of ``settings.draw`` and packs them. Pure: no I/O."""

    def __call__(
        self,
        table: LengthTable,
        items: Items,
        settings: PlanSettings,
        *,
        sources: Mapping[str, int] | None,
        uses: AnyIntArray | None,
        pack: Pack,
    ) -> Drawn:
        """Draw and pack.

        Args:
            table: all input samples.
            items: the items that can be packed.
            settings: of the plan; the seed and the epoch choose the draws.
            sources: number of samples of each source, by name and in the order of the table.
            uses: ``int[num_samples]``: how often each sample was consumed before; None for what the
                epochs before this one would have consumed.
            pack: function that packs items.
        """
