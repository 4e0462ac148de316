"""Probe: the forward of a running job, with other tokens in one segment.

``probe`` watches a loop of one's own, ``callbacks`` a trainer, ``megatron`` a schedule of pipeline
stages. ``exchange`` chooses what is exchanged, ``forwards`` runs it, ``recorder`` keeps hidden
states and losses, ``leaks`` tells a leak from rounding, ``unchanged`` puts everything back,
``ranks`` lets all ranks come to one verdict, ``step`` counts targets and divisors, ``findings``
writes the report.
"""
