"""One plan on many ranks: ``shared_plan``, ``SharedPackedDataset``, ``broadcast_plan``."""

from brimful.shared.broadcast import broadcast_plan
from brimful.shared.dataset import SharedPackedDataset
from brimful.shared.domains import PackMetadata
from brimful.shared.ranks import Ranks, find_ranks
from brimful.shared.shared_plan import SharedPlan, shared_plan
from brimful.shared.waiting import Waiting

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
