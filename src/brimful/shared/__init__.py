"""One plan on many ranks: ``shared_plan``, ``SharedPackedDataset``, ``broadcast_plan``."""

from brimful.shared.ranks import Ranks, Waiting, broadcast_plan, find_ranks
from brimful.shared.shared_plan import SharedPackedDataset, SharedPlan, shared_plan
from brimful.shared.source_plans import PackMetadata

__all__ = [
    "PackMetadata",
    "Ranks",
    "SharedPackedDataset",
    "SharedPlan",
    "Waiting",
    "broadcast_plan",
    "find_ranks",
    "shared_plan",
]
