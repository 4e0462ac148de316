"""Saved plans: their file, and their validation."""
