"""Process group of this process, if a trainer has made one."""

from __future__ import annotations

import sys
from typing import Any


def process_group() -> Any | None:
    """Return the module ``torch.distributed`` if this process has initialized a process group,
    otherwise None.
    """
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return distributed
