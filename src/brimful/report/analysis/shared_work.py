"""Work of samples that share their beginnings, compared with the same samples each on its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from brimful.lengths.table import LengthTable
from brimful.plan import Plan
from brimful.plan.schedule import CostModel
from brimful.plan.schedule.pack_costs import sample_costs
from brimful.trees.account import SharedTokens, lengths_in_packs


@dataclass(frozen=True)
class SharedWork:
    """Tokens that the samples of a plan share, and the cost that this saves.

    Attributes:
        tokens: the counts.
        flat_cost: of the samples, each on its own, by the cost model.
        tree_cost: of the segments of the trees.
        unit: of a cost.
    """

    tokens: SharedTokens
    flat_cost: float
    tree_cost: float
    unit: str

    @classmethod
    def of(
        cls, plan: Plan, model: CostModel, table: LengthTable | None = None
    ) -> SharedWork | None:
        """Count the work of a plan with and without its trees; None for a flat plan.

        Args:
            plan: the packs.
            model: cost of tokens and of attention; towers are left out.
            table: the lengths that were planned, with their prefixes, for what is not shared.
        """
        tokens = SharedTokens.of(plan, table)
        if tokens is None:
            return None
        return cls(
            tokens,
            float(sample_costs(lengths_in_packs(plan), model).sum()),
            float(plan.costs(model).sum()),
            model.unit,
        )

    @property
    def speedup(self) -> float:
        """Expected speed-up: cost of the flat samples ÷ cost of the trees.

        ::

            (a · F + b · flat) ÷ (a · T + b · tree)

        with a = ``linear`` and b = ``quadratic`` of the model, F and T the tokens of the samples
        and of the trees, flat = Σ l² over the samples, and tree = Σ (stop² − start²) over the
        segments, whose tokens attend to the tokens of their trunks. Tile and window of the model
        are counted in both. It leaves out what does not shrink: the head and the loss if each
        target is gathered on its own, the optimizer, the communication of gradients. A dense mask
        saves nothing in attention.
        """
        return self.flat_cost / self.tree_cost

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers for JSON."""
        costs = {"flat": self.flat_cost, "trees": self.tree_cost, "unit": self.unit}
        return {**self.tokens.as_dict(), "costs": costs, "speedup": self.speedup}
