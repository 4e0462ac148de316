"""Descriptions of lengths, plans, packs and stores, for people and for machines.

Three rooms: ``analysis`` computes and knows no medium; ``html`` draws a page of it and ``text`` lines for a terminal.
Both read ``analysis`` and neither reads the other.
"""
