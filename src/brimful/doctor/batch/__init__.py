"""Batches of any loader: what is in them, and what contradicts itself."""
