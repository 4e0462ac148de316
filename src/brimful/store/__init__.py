"""Packs on disk: from a plan (``write_packs``), in one job (``pack_dataset``), or while data
arrives (``producer``).
"""

from brimful.store.claim import JobSettings
from brimful.store.packing_job import pack_dataset
from brimful.store.summary import PackSummary
from brimful.store.writing import write_packs

__all__ = ["JobSettings", "PackSummary", "pack_dataset", "write_packs"]
