"""Wing of dynamic batches: composed while training runs, without a plan.

::

    in    samples or tokens in the order of a seed, and a limit: tokens, samples, a cost
    out   batches, the same number on each rank, and a state that any number of ranks resumes
    seam  serve.order.Order, which a composed order is

``TokenBudgetBatches`` fill a budget of tokens with whole samples, ``WindowBatches`` pack the next
window of samples; both take data sets of any library.
"""

from brimful.dynamic.agreement import RankAgreement
from brimful.dynamic.compose import BatchLedger
from brimful.dynamic.composed_batches import TokenBudgetBatches, WindowBatches
from brimful.dynamic.online_window import Window
from brimful.dynamic.token_budget import Count, Fit, SampleCount, TokenBudget, Warmup

__all__ = [
    "BatchLedger",
    "Count",
    "Fit",
    "RankAgreement",
    "SampleCount",
    "TokenBudget",
    "TokenBudgetBatches",
    "Warmup",
    "Window",
    "WindowBatches",
]
