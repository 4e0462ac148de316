"""Rooms beside the line, by the names of their modules: the line loads them here and imports none of them.

A module that is named here registers what it adds when it is imported.
"""

FORMAT_MODULES = ("brimful.preferences.formats",)
"""Modules that register formats of rows (``sources.formats.register``)."""
