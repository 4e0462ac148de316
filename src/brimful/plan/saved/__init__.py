"""Packs of a plan as arrays, their file, and their validation."""
