"""Progress of one reader of a stream, told by heartbeats: counted where packs are served, written by another thread."""

from __future__ import annotations

import os
import sys
import weakref
from collections.abc import Sequence
from functools import partial
from typing import Any

from brimful.blobs import BlobStore
from brimful.serve.follow import FollowedLog
from brimful.shards import Heartbeat, Pack, reader_key, remove_surplus_readers, seconds_between


class ReaderHeartbeat:
    """Counts of one process that reads for a rank. On the path of a step it adds five numbers.

    Forked or sent to another process it begins anew there, with counts of that process.

    Args:
        store, log: of the stream.
        group: name of the training.
        dp_rank, dp_world_size: the rank, as people number it.
        order: ``lanes``, ``assign`` and ``tail``, by which places follow from positions.
    """

    def __init__(
        self,
        store: BlobStore,
        log: FollowedLog,
        *,
        group: str,
        dp_rank: int,
        dp_world_size: int,
        order: dict[str, Any],
    ) -> None:
        self._store, self._log = store, log
        self._group, self._dp_rank, self._dp_world_size, self._order = group, dp_rank, dp_world_size, order
        self._process_id = 0

    def start(self, *, epoch: int, position: int) -> None:
        """Begin to write, if this process has not yet; called before anything is waited for.

        Args:
            epoch: pass over the stream.
            position: packs of all ranks in front of what is asked for first.
        """
        self._epoch = epoch
        if self._process_id == os.getpid():
            return
        self._process_id = os.getpid()
        self._worker, self._num_workers = _worker()
        self._counts = dict.fromkeys(("packs", "tokens", "places", "skipped"), 0)
        self._position, self._waited_before = position, self._log.seconds_waited
        # The thread must not keep a loader alive that nobody uses any more.
        reader_of = weakref.ref(self)

        def tell() -> tuple[str, dict[str, Any], dict[str, float]] | None:
            reader = reader_of()
            return None if reader is None else reader._told()

        ranks = {"dp_rank": self._dp_rank, "dp_world_size": self._dp_world_size, "num_workers": self._num_workers}
        prepare = None if self._worker else partial(remove_surplus_readers, self._store, self._group, **ranks)
        interval = seconds_between(self._dp_world_size * self._num_workers)
        self._heartbeat = Heartbeat(self._store, tell, interval=interval, prepare=prepare)
        weakref.finalize(self, self._heartbeat.stop, is_over=False)

    def count(self, packs: Sequence[Pack], *, position: int, num_places: int, num_skipped: int) -> None:
        """Count the packs of one micro-batch.

        Args:
            packs: that were read, without fillers.
            position: of the stream behind the micro-batch.
            num_places: places of this rank in it, also those without a pack.
            num_skipped: damaged packs so far.
        """
        counts = self._counts
        counts["packs"] += len(packs)
        counts["tokens"] += sum(len(pack.input_ids) for pack in packs)
        counts["places"] += num_places
        counts["skipped"] = num_skipped
        self._position = position

    def finish(self) -> None:
        """Say that the stream has ended for this reader."""
        if self._process_id == os.getpid():
            self._heartbeat.stop()
            self._process_id = 0

    def _told(self) -> tuple[str, dict[str, Any], dict[str, float]]:
        facts = {
            "group": self._group,
            "dp_rank": self._dp_rank,
            "dp_world_size": self._dp_world_size,
            "worker": self._worker,
            "num_workers": self._num_workers,
            **self._order,
            "epoch": self._epoch,
            "position": self._position,
            "waiting_for": self._log.awaited,
        }
        waited = self._log.seconds_waited - self._waited_before
        return reader_key(self._group, self._dp_rank, self._worker), facts, {**self._counts, "waited": waited}


def _worker() -> tuple[int, int]:
    """Return number and count of the workers of a ``DataLoader``, if this process is one of them."""
    module = sys.modules.get("torch.utils.data")
    info = None if module is None else module.get_worker_info()
    return (0, 1) if info is None else (int(info.id), int(info.num_workers))
