"""Wing of many machines: one plan on all ranks, tasks on Ray, stores at a URL and their copies.

::

    in    settings of a plan on each rank; kept lengths; tasks; the URL of a store
    out   SharedPlan; LengthCache, its lengths; results of the tasks; BlobStore, BlobCopies
    seam  base.wings: ENGINES, REMOTE_STORE, REMOTE_FILES, BLOB_COPIES
"""

from brimful.clusters.length_cache import LengthCache, OnCacheMismatch
from brimful.clusters.ranks import Ranks, Waiting, broadcast_plan, find_ranks
from brimful.clusters.shared_plan import SharedPackedDataset, SharedPlan, shared_plan
from brimful.clusters.source_plans import PackMetadata

__all__ = [
    "LengthCache",
    "OnCacheMismatch",
    "PackMetadata",
    "Ranks",
    "SharedPackedDataset",
    "SharedPlan",
    "Waiting",
    "broadcast_plan",
    "find_ranks",
    "shared_plan",
]
