"""Descriptions of lengths, plans, packs and stores, for readers and for machines.

Three packages: ``analysis`` computes, independent of any output; ``html`` draws a page and ``text``
terminal lines. Both import ``analysis``, and neither imports the other. ``store_check``
reads every byte of a store.
"""
