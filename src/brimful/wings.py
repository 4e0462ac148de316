"""Rooms beside the line, by the names of their modules: the line loads them here and imports none of them.

A module that is named here registers what it adds when it is imported.
"""

FORMAT_MODULES = ("brimful.preferences.formats",)
"""Modules that register formats of rows (``sources.formats.register``)."""

TOWERS_MODULE = "brimful.media.towers"
"""Module whose ``tower_terms`` reads the costs of towers from a model's config (``plan.schedule.cost_model``)."""
