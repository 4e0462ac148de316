"""Packs on disk: from a plan (``write_packs``), in one job (``pack_dataset``), or while data arrives (``producer``)."""

from brimful.materialize.check import check_store
from brimful.materialize.job import pack_dataset
from brimful.materialize.settings import JobSettings
from brimful.materialize.summary import PackSummary
from brimful.materialize.write import write_packs

__all__ = ["JobSettings", "PackSummary", "check_store", "pack_dataset", "write_packs"]
