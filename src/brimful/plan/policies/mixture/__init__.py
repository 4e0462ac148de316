"""Mixtures of several sources: which samples are packed, how often, and in which order they are drawn."""
