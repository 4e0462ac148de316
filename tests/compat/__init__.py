"""Compatibility with releases of trainers: ``make compat`` and the page that it writes."""
