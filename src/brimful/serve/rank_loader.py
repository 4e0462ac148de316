"""Base of the loaders: one data-parallel rank among several, its epochs, and the loop that serves batches."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import numpy as np

from brimful.base.checks import check_rank, check_type
from brimful.plan.schedule import Tail
from brimful.store.shards import Pack, PlainPack

Loader = TypeVar("Loader", bound="RankLoader")
AnyPack = TypeVar("AnyPack", Pack, PlainPack)


class RankLoader(abc.ABC):
    """Base of the loaders of one data-parallel rank among several, with its current epoch.

    A loader determines the next request (``next_request``), makes its batch (``make_batch``), and counts it
    (``advance``). Only ``make_batch`` reads or encodes samples: the workers of a ``DataLoader`` go through all requests
    of their rank, and each worker makes every n-th batch.
    """

    knows_order = True
    """True if a request never waits for its packs to exist, so that requests may be made ahead."""

    def __init__(
        self, collate_fn: Callable[[list[Pack]], Any] | None, *, dp_rank: int, dp_world_size: int, tail: Tail | str
    ) -> None:
        if collate_fn is not None and not callable(collate_fn):
            check_type("collate_fn", collate_fn, (), "a function of a list of packs, such as PackCollator()")
        self._dp_rank, self._dp_world_size = check_rank(dp_rank, dp_world_size)
        self._collate = collate_fn if collate_fn is not None else list
        self._tail = Tail.named(tail)
        self._epoch = 0

    @property
    def epoch(self) -> int:
        """Epoch of the next batch. It increases at the end of an epoch."""
        return self._epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless it is the current epoch.

        So training loops that call it before every epoch may also call it after ``load_state_dict``, and continue from
        the state.
        """
        check_type("epoch", epoch, (int, np.integer), "a whole number")
        if epoch != self._epoch:
            self.begin_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        while (request := self.next_request()) is not None:
            # Count a batch only after it is made: a state saved after an error of the collator has the same packs next.
            # Count it before it is yielded: a state saved while it trains is positioned after it.
            batch = self.make_batch(request)
            is_last = self.advance()
            yield batch
            if is_last:
                return

    @abc.abstractmethod
    def begin_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, which may be the current one."""

    def prepare(self) -> None:  # noqa: B027  # most loaders need nothing
        """Make what the epoch needs if it does not exist; call it before a fork, or each process makes it."""

    @abc.abstractmethod
    def next_request(self) -> Any | None:
        """Return the request for the next batch; at the end move to the next epoch, if any, and return None."""

    @abc.abstractmethod
    def make_batch(self, request: Any) -> Any:
        """Read or encode the packs of a request, and collate them."""

    @abc.abstractmethod
    def advance(self) -> bool:
        """Count the next batch as served; return true if it is known to be the last of its epoch."""

    @abc.abstractmethod
    def state_dict(self) -> dict[str, Any]:
        """Return the position; it counts delivered batches, not batches that a consumer prefetched."""

    @abc.abstractmethod
    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the position of a state.

        Raises:
            StateError: the state does not fit; names the difference.
        """

    @abc.abstractmethod
    def fork(self: Loader) -> Loader:
        """Return a loader of the same samples and settings with its own position, at the same place.

        Raises:
            SettingsError: the source cannot have two positions.
        """


def without_loss(pack: AnyPack) -> AnyPack:
    """Return the same tokens without targets, media and sample ids (all -1), to keep a rank without a pack in step."""
    if isinstance(pack, PlainPack):
        return pack.without_loss()
    return Pack(pack.input_ids, pack.loss_mask & False, pack.cu_seqlens, np.full_like(pack.sample_ids, -1), pack.starts)
