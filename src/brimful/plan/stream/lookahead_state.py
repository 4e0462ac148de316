"""State of a planner of a stream: counts and waiting segments, as plain numbers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from brimful.base.fingerprint import fingerprint_array
from brimful.base.typing import AnyIntArray, Fingerprint
from brimful.errors import StateError
from brimful.plan.stream.stream_packs import StreamLedger

VERSION = 1
"""Version of the state."""

WAITING = np.dtype(
    [("id", np.int64), ("start", np.int32), ("length", np.int32), ("deadline", np.int64)]
)
"""Fields of a waiting segment; its deadline is the number, from 0, of the last pack that may hold
it.
"""


def fingerprint_of_keys(keys: Sequence[AnyIntArray]) -> Fingerprint:
    """Return the fingerprint of the keys of waiting samples, whatever their type."""
    return fingerprint_array(np.concatenate([np.empty(0, dtype=np.int64), *keys]).astype(np.int64))


def read_state(
    state: Mapping[str, Any], *, size: int, capacity: int, max_wait: int
) -> tuple[Counter[str], dict[str, AnyIntArray]]:
    """Read counts and window from a state, and check that they agree: a state may come from
    anywhere.
    """
    try:
        counts = Counter({key: int(state["counts"][key]) for key in StreamLedger().as_dict()})
        if "tokens_shared" in state["counts"]:
            counts["tokens_shared"] = int(state["counts"]["tokens_shared"])
        ids = np.array(state["sample_ids"], dtype=np.int64)
        lengths = np.array(state["lengths"], dtype=np.int32)
        starts = np.array(state["starts"] or [0] * len(ids), dtype=np.int32)
        deadlines = np.repeat(*(np.array(part, dtype=np.int64) for part in state["deadlines"]))
        StreamLedger(
            **{
                **counts,
                "segments_waiting": len(ids),
                "tokens_waiting": int(lengths.sum(dtype=np.int64)),
            }
        )
    except (KeyError, TypeError, ValueError, OverflowError, AssertionError) as error:
        raise StateError(
            f"the lookahead state is damaged: {type(error).__name__} {error}"
        ) from error
    emitted = counts["packs_emitted"]
    ranks = np.arange(len(deadlines))
    if not len(ids) == len(lengths) == len(starts) == len(deadlines) < size:
        shown = f"{len(ids)} sample ids, {len(lengths)} lengths, {len(deadlines)} deadlines"
        raise StateError(
            f"the lookahead state is damaged: {shown}, and fewer than {size:,} can wait"
        )
    if len(ids) and not (lengths.min() >= 1 and lengths.max() <= capacity and starts.min() >= 0):
        raise StateError(f"the lookahead state is damaged: lengths are not from 1 to {capacity:,}")
    if (
        (np.diff(deadlines) < 0).any()
        or (deadlines < emitted + ranks).any()
        or (deadlines > emitted + max_wait).any()
    ):
        raise StateError("the lookahead state is damaged: a sample would wait too long")
    return counts, {"id": ids, "start": starts, "length": lengths, "deadline": deadlines}
