"""One plan on many ranks: ``shared_plan``, ``SharedPackedDataset``, ``broadcast_plan``."""

from brimful.shared.broadcast import broadcast_plan
from brimful.shared.domains import PackMetadata
from brimful.shared.ranks import Ranks, Waiting, find_ranks
from brimful.shared.shared_plan import SharedPackedDataset, SharedPlan, shared_plan

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
