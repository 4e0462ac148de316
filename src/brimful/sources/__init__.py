"""Samples by index: ``open_source`` and the ``Source`` it returns.

A ``Source`` has rows (``rows.py`` and one file per kind of storage) and a format (``formats/``, one
file per kind of row).
"""

from brimful.sources.opening import open_source
from brimful.sources.rows import Block, Rows
from brimful.sources.sample import Message, Sample
from brimful.sources.settings import TextUnit
from brimful.sources.source import Source

__all__ = ["Block", "Message", "Rows", "Sample", "Source", "TextUnit", "open_source"]
