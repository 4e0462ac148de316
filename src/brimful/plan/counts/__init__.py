"""Packing of equal lengths at once: counts, their order, and runs of packs."""
