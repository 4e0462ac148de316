"""Rows with media: formats of a medium and its text, and layouts with media next to their rows."""

import brimful.sources  # noqa: F401  # formats are registered in the order of its table
