"""Readers of packs in the layouts of other projects: their samples are rows again.

``chunks`` reads ms-swift's packed lines, ``pairs`` packs of LLaVA-OneVision-1.5. ``open_source``
asks the ``open_rows`` of each module (``brimful.base.wings``).
"""
