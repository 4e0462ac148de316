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

from brimful.plan.optimal.master_problem import installed_solver
from brimful.plan.optimal.search import pack_optimally

__all__ = ["installed_solver", "pack_optimally"]
