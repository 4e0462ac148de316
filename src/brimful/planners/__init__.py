"""Wing of planners that ``plan`` reaches by name: searches, recipes, and several budgets at once.

::

    in    counts of lengths and CountOptions, or the sizes of items and a limit for each budget
    out   PackResult
    seam  plan.algorithms.ALGORITHMS names module and function; base.wings.BUDGET_PACKER

``optimal`` proves how far from the fewest packs it is, ``phased`` follows a recipe, and ``vector``
packs under several budgets.
"""
