"""Optimal packing: few packs, and a bound that proves that no plan has fewer.

::

    search ─► minimum_bin_slack                       packs without waste, by a heuristic
       │
       └────► column_generation ◄─► master_problem    a linear program over patterns; its duals are prices
                     │   ▲
                     └───┴── knapsack                 the pricing problem: the most valuable patterns, and a bound
                     │
                     └─► rounding                     whole packs from fractions

``SearchLimit`` can stop all of them.
"""

from brimful.planners.optimal.master_problem import installed_solver
from brimful.planners.optimal.search import pack_better, pack_counts, pack_optimally

__all__ = ["installed_solver", "pack_better", "pack_counts", "pack_optimally"]
