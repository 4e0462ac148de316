"""Loaders of one rank's micro-batches: an order says which packs come next, the loader reads and
collates them.
"""

from collections.abc import Callable, Iterator, Mapping
from copy import copy
from typing import Any, Generic, TypeVar

import numpy as np

from brimful.base.arguments import as_settings, understands
from brimful.base.checks import check_type
from brimful.serve.order import Order, Request
from brimful.serve.schedule_order import ScheduleOrder, ScheduleSettings
from brimful.store.shards import FingerprintedPacks, Pack

AnyOrder = TypeVar("AnyOrder", bound=Order)
Loader = TypeVar("Loader", bound="RankLoader[Any]")


class RankLoader(Generic[AnyOrder]):
    """Micro-batches of one data-parallel rank: the packs of an order, read and collated, with a
    state.

    Only ``make_batch`` reads or encodes samples.

    Attributes:
        dataset: packs by the keys of the order.
        order: which packs come next.
        collate_fn: turns a list of packs into a batch.

    Args:
        dataset: with ``__getitem__`` of a key, or ``__getitems__`` of several.
        order: a ``ScheduleOrder``, ``ComposedOrder`` or ``FollowedOrder``.
        collate_fn: the packs themselves become the batch if None.
    """

    def __init__(
        self, dataset: Any, order: AnyOrder, collate_fn: Callable[[list[Pack]], Any] | None = None
    ) -> None:
        if collate_fn is not None and not callable(collate_fn):
            check_type(
                "collate_fn",
                collate_fn,
                (),
                "a function of a list of packs, such as PackCollator()",
            )
        self.dataset, self.order = dataset, order
        self.collate_fn = collate_fn if collate_fn is not None else list

    @property
    def epoch(self) -> int:
        """Epoch of the next batch. It increases at the end of an epoch."""
        return self.order.epoch

    def start_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, which may be the current one."""
        self.order.start_epoch(epoch)

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless it is the current epoch.

        So training loops that call it before every epoch may also call it after
        ``load_state_dict``, and continue from the state.
        """
        check_type("epoch", epoch, (int, np.integer), "a whole number")
        if epoch != self.epoch:
            self.start_epoch(epoch)

    def __iter__(self) -> Iterator[Any]:
        while (request := self.order.next_request()) is not None:
            # Count a batch only after it is made: a state saved after an error of the collator has
            # the same packs next. Count it before it is yielded: a state saved while it trains is
            # positioned after it.
            batch = self.make_batch(request)
            is_last = self.order.advance()
            yield batch
            if is_last:
                return

    def make_batch(self, request: Request) -> Any:
        """Read or encode the packs of a request, and collate them."""
        # PyTorch-style data sets return several packs at once, whose samples may be encoded
        # together.
        get_items = getattr(self.dataset, "__getitems__", None)
        packs = (
            [self.dataset[key] for key in request.keys]
            if get_items is None
            else get_items(request.keys)
        )
        return self.collate_fn(
            packs if request.has_loss else [pack.without_loss() for pack in packs]
        )

    def fork(self: Loader) -> Loader:
        """Return a loader of the same packs and settings with its own position, at the same place.

        Raises:
            SettingsError: the source cannot have two positions.
        """
        loader = copy(self)
        loader.order = self.order.fork()
        return loader

    def state_dict(self) -> dict[str, Any]:
        """Return the position; it counts delivered batches, not batches that a consumer
        prefetched.
        """
        return self.order.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state, which other ranks may have saved between two steps.

        Raises:
            StateError: the state belongs to other packs or another order, or was saved within a
                step by other ranks; names the difference.
        """
        self.order.load_state_dict(state)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.order!r})"


class PackLoader(RankLoader[ScheduleOrder]):
    """Micro-batches of one data-parallel rank, epoch by epoch.

    Every rank computes the same schedule from (number of packs, seed, epoch, ranks) and takes its
    part: all ranks have equal steps without communication. Iterating serves one epoch (after
    ``load_state_dict`` its remainder) and moves on to the next.

    A state that was saved between two steps may be loaded with other ranks. With the same number of
    packs in a step, such as half the ranks and twice the micro-batches, global batches stay the
    same to the end of the run; with another number the packs that were not served yet continue in
    their order (``resized_schedule``).

    Args:
        dataset: a ``PackedDataset`` or ``PackStore``.
        collate_fn: turns a list of packs into a batch; the packs themselves if None. A rank without
            a pack (in the tail with ``pad``) gets the first pack of the epoch with all labels
            ignored.
        dp_rank, dp_world_size: this rank among the ranks that see different data. TP, CP and PP
            peers share one.
        packs_per_micro_batch: packs of one forward pass.
        micro_batches: forward passes of one step (gradient accumulation).
        seed: seed of the order; None keeps the order of the plan.
        tail: ``pad``, ``drop`` or ``repeat`` (``Tail``).
        costs: cost of each pack, from ``plan.costs(model)``, or of each pack in each part of the
            model, from ``plan.costs(model, lengths)``; ranks then have nearly equal work in each
            micro-batch, in towers too. None does not balance the shuffled packs.
        window_steps: number of steps within which packs are exchanged to balance costs
            (``schedule_packs``).

    Raises:
        SettingsError: an impossible number of ranks, too few packs for one step, or invalid costs.

    >>> from brimful.testing.toys import toy_packs
    >>> loader = PackLoader(toy_packs(5), dp_rank=1, dp_world_size=2, seed=None, tail="drop")
    >>> len(loader), [pack.sample_ids.tolist() for pack, in loader]
    (2, [[1], [3]])
    """

    @understands({}, ScheduleSettings)
    def __init__(
        self,
        dataset: FingerprintedPacks,
        collate_fn: Callable[[list[Pack]], Any] | None = None,
        **options: Any,
    ) -> None:
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "fingerprint")):
            check_type(
                "dataset",
                dataset,
                (),
                "a PackedDataset or a PackStore",
                "open a directory by PackedDataset",
            )
        super().__init__(
            dataset,
            ScheduleOrder(dataset, as_settings(ScheduleSettings, None, options)),
            collate_fn,
        )

    @property
    def steps_per_epoch(self) -> int:
        """Number of optimizer steps of a whole epoch: the same on every rank."""
        return self.order.steps_per_epoch

    def __len__(self) -> int:
        """Return the number of micro-batches of this epoch on this rank, including the served
        ones.
        """
        return len(self.order)
