"""Loader of one rank's micro-batches from a stream that may still grow: in lockstep, resumable from
one integer.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from brimful.base.arguments import as_settings, understands
from brimful.base.typing import AnyPath
from brimful.base.wording import setting
from brimful.errors import SettingsError, StateError
from brimful.serve.loader import RankLoader
from brimful.serve.order import Order, Request, check_state
from brimful.store.shards import Pack
from brimful.stream.assignment import Assignment, StreamSettings
from brimful.stream.followed_packs import FollowedPacks


class FollowedOrder(Order):
    """Packs in the order of a stream: one from each lane in every step, as far as its log shows
    them.

    Args:
        packs: the stream, opened for this rank.
    """

    knows_all = False

    def __init__(self, packs: FollowedPacks) -> None:
        self._packs, settings = packs, packs.settings
        super().__init__(settings.dp_rank, settings.dp_world_size, settings.tail)
        self._position = (
            0  # packs of all ranks that were delivered in this pass, including empty places
        )

    def start_epoch(self, epoch: int) -> None:
        """Go to the beginning of the stream, for the pass with this number."""
        self.epoch, self._position = int(epoch), 0

    def next_request(self) -> Request | None:
        """Return the positions of the next micro-batch once the log shows that it exists; None at
        the end.
        """
        packs = self._packs
        while not packs.has_micro_batch(self._position):
            # Exactly once: a run that is restarted after its last step does not train a second
            # pass.
            if not (packs.settings.repeat and self._position):
                return None
            self.start_epoch(self.epoch + 1)
        return Request(packs.positions_of_rank(self._position))

    def advance(self) -> bool:
        """Count the next micro-batch as served; the log may not show yet whether it was the
        last.
        """
        self._position += self._packs.packs_together
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the same on every rank, and the identity of the stream."""
        return self._packs.state_at(self._position, self.epoch)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state, which another number of ranks may have saved.

        With assignment by packs, a run may also continue with another step size if one of its steps
        begins at this position.

        Raises:
            StateError: the state belongs to another stream or order, or to a part of a step where
                these ranks cannot continue; or the log has become shorter.
        """
        packs = self._packs
        by_packs = packs.settings.assign is Assignment.PACK
        epoch, step, num_slots = check_state(
            state,
            self.state_dict(),
            ["assign", "tail"] if by_packs else ["lanes", "assign", "tail"],
        )
        lanes = state["lanes"]
        position = step * lanes + num_slots
        remainder = position % packs.lanes
        if lanes != packs.lanes and remainder:
            raise StateError(
                f"the loader state does not fit: lanes ({lanes} in the state, {packs.lanes} here), "
                f"and its {position:,} packs end within a step of {packs.lanes}: give "
                f"{setting('lanes', lanes)}, or a divisor of {position:,}"
            )
        if remainder % packs.packs_together:
            raise StateError(
                f"the state was saved within a step, after {remainder} of {packs.lanes} packs, and "
                f"micro-batches of {packs.settings.packs_per_micro_batch} × {self.dp_world_size} "
                "ranks do not meet it: save at the end of a step"
            )
        packs.check_reached(step + bool(num_slots), lanes)
        self.epoch, self._position = epoch, position

    def __repr__(self) -> str:
        packs = self._packs
        return (
            f"{packs!r}, dp_rank {self.dp_rank} of {self.dp_world_size}, step "
            f"{self._position // packs.lanes:,}"
        )


class StreamLoader(RankLoader[FollowedOrder]):
    """Micro-batches of one data-parallel rank from a finished or growing stream of packs.

    A global batch is one pack from each of ``lanes`` places, so it is the same for every number of
    ranks that divides ``lanes``. A rank waits for shards that do not exist yet, and all ranks serve
    the same number of steps: the log decides, without communication. Iterating serves the rest of
    the stream once; ``set_epoch`` begins another pass.

    Args:
        directory: path or URL of the stream.
        collate_fn: turns a list of packs into a batch; the packs themselves if None.
        dp_rank, dp_world_size: this rank among the ranks that see different data.
        lanes: packs of one global batch, a multiple of ``dp_world_size``; the lanes of the stream
            if None.
        assign: ``lane`` or ``pack`` (``Assignment``); by lanes if the stream has several, otherwise
            by packs.
        packs_per_micro_batch: packs of one forward pass; all packs of this rank in a step if None.
        tail: ``pad`` serves the last packs together with empty places, ``drop`` leaves them out.
        timeout: maximum seconds of one wait for a shard; None waits forever, with a warning each
            minute.
        on_corrupt: ``error``, or ``skip``: a pack without loss replaces a damaged one, which is
            counted.
        repeat: begin again at the end of the stream, forever.
        group: name of the ranks that train one model on the stream, for ``ack``.
        cache_dir, cache_bytes: see ``open_packs``.

    Attributes:
        packs: packs of the stream by position (``FollowedPacks``): its log, and what was waited for
            and skipped.
        directory: path or URL of the stream.
        identity: settings that the packs were made with, from the header.
        settings: settings of this loader, including values derived from the stream.
        lanes: packs of one global batch.
        is_repeated: true if the stream begins again at its end.
        packs_together: number of packs that all ranks take in one micro-batch.

    Raises:
        SettingsError: the number of ranks does not divide the lanes, or ``packs_per_micro_batch``
            does not divide the packs of a rank.
        NotAPackStoreError: the directory holds no stream.

    >>> import tempfile
    >>> from brimful.testing.toys import toy_stream
    >>> stream = toy_stream(tempfile.mkdtemp(), [2, 2, 1])
    >>> loader = StreamLoader(stream, dp_rank=1, dp_world_size=2, lanes=2)
    >>> [[pack.sample_ids.tolist() for pack in batch] for batch in loader]
    [[[1]], [[3]], [[-1]]]
    """

    @understands({}, StreamSettings)
    def __init__(
        self,
        directory: AnyPath,
        collate_fn: Callable[[list[Pack]], Any] | None = None,
        **options: Any,
    ) -> None:
        self.packs = packs = FollowedPacks(directory, as_settings(StreamSettings, None, options))
        super().__init__(packs, FollowedOrder(packs), collate_fn)
        self.directory, self.identity, self.settings = (
            packs.directory,
            packs.identity,
            packs.settings,
        )
        self.lanes, self.packs_together, self.is_repeated = (
            packs.lanes,
            packs.packs_together,
            packs.settings.repeat,
        )

    @property
    def steps_per_epoch(self) -> int | None:
        """Number of steps of one pass, the same on every rank; None while the stream grows."""
        return self.packs.steps_per_epoch

    @property
    def num_skipped(self) -> int:
        """Number of damaged packs."""
        return self.packs.num_skipped

    def ack(self, group: str | None = None, *, checkpoint: str = "") -> None:
        """Acknowledge the packs delivered so far, after a checkpoint that includes them is durable.

        One rank must call it. If every rank calls it, ``brimful inspect`` shows which rank lags.

        Args:
            group: the ranks that train one model on this stream; the group of the loader if None.
            checkpoint: name of the model checkpoint, for inspection.

        Raises:
            SettingsError: neither this call nor the loader names a group.
            StateError: within a step, or another run has acknowledged this position after different
                packs.
        """
        # A further pass needs all shards again.
        is_last_pass = self.epoch == 0 and not self.settings.repeat
        name = self.settings.group if group is None else group
        if name is None:
            raise SettingsError(
                f'ack needs the name of the training: ack("run-1"), or {setting("group", "run-1")}'
            )
        self.packs.ack(name, self.state_dict(), checkpoint=checkpoint, is_last_pass=is_last_pass)
