"""Micro-batches of one rank, composed during training from samples by index or from a live
stream.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from brimful.base.arguments import as_settings, understands
from brimful.base.checks import check_type
from brimful.base.typing import IntArrayLike
from brimful.dynamic.compose import BatchLedger
from brimful.dynamic.composed_order import Batching, ComposedOrder
from brimful.dynamic.online_window import Window
from brimful.dynamic.sample_feeds import IndexedSampleFeed, SampleFeed, StreamSampleFeed
from brimful.dynamic.token_budget import Count, SampleCount, TokenBudget
from brimful.errors import SettingsError
from brimful.lengths.table import LengthTable
from brimful.serve.loader import RankLoader
from brimful.serve.order import (
    RankSettings,
)
from brimful.serve.worker_news import WorkerNews
from brimful.store.shards import Pack


class ComposedBatches(RankLoader[ComposedOrder]):
    """Base of ``TokenBudgetBatches`` and ``WindowBatches``, which document it."""

    @understands({}, RankSettings)
    def __init__(
        self,
        source: Any,
        batching: Batching,
        collate_fn: Callable[[list[Pack]], Any] | None = None,
        *,
        lengths: IntArrayLike | None = None,
        loss_tokens: IntArrayLike | None = None,
        agree: Callable[[bool], bool] | None = None,
        **options: Any,
    ) -> None:
        choices = (TokenBudget, SampleCount, Window)
        check_type("batching", batching, choices, "a TokenBudget, a SampleCount or a Window")
        if isinstance(source, (str, bytes)) or not (
            hasattr(source, "__iter__") or hasattr(source, "__getitem__")
        ):
            check_type("source", source, (), "samples by index or as a stream")
        settings = as_settings(RankSettings, None, options)
        if agree is not None and settings.dp_world_size > 1:
            raise SettingsError(
                "agree is for ranks that each read their own stream: leave dp_world_size at 1"
            )
        by_targets = isinstance(batching, TokenBudget) and batching.count is Count.LOSS_TOKENS
        feed: SampleFeed
        if isinstance(lengths, LengthTable) and lengths.group_size > 1:
            raise SettingsError(
                "composed micro-batches take single samples, and both samples of a row of "
                "preferences or KTO must stay together: serve them from packs (PackLoader)"
            )
        if lengths is not None:
            feed = IndexedSampleFeed(
                source, lengths, loss_tokens, by_targets=by_targets, seed=settings.seed
            )
        elif loss_tokens is not None:
            raise SettingsError("loss_tokens needs lengths: give both, or none for a stream")
        else:
            feed = StreamSampleFeed(source, by_targets=by_targets)
        super().__init__(feed, ComposedOrder(feed, batching, settings, agree), collate_fn)
        self._news = WorkerNews()
        self._in_worker: Any = None
        if "torch" in sys.modules:
            # Loaders of PyTorch recognize an iterable data set by its type.
            from torch.utils.data import IterableDataset

            IterableDataset.register(type(self))

    def __iter__(self) -> Iterator[Any]:
        torch_data = sys.modules.get("torch.utils.data")
        worker = None if torch_data is None else torch_data.get_worker_info()
        if worker is None:
            return super().__iter__()
        if worker.num_workers == 1 and isinstance(self.dataset, StreamSampleFeed):
            return self._follow()
        if self._in_worker is None:
            from brimful.serve.worker_loader import LoaderDataset

            self._in_worker = LoaderDataset(self, self._news)
        return iter(self._in_worker)

    def _follow(self) -> Iterator[Any]:
        """Serve an epoch in the only worker, which goes on where its stream is."""
        if (update := self._news.receive()) is not None:
            super().set_epoch(update[0])
        yield from super().__iter__()

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, unless it is the current epoch; in workers that stay too."""
        if self._news.is_served and epoch != self.epoch:
            self.order.finish_epoch()
        super().set_epoch(epoch)
        self._news.publish(self.epoch, self.step)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state; workers that stay refuse another iteration.

        Raises:
            StateError: see ``RankLoader``.
        """
        super().load_state_dict(state)
        self._news = self._news.end()

    def fork(self) -> Any:
        """Return a loader of the same samples and settings with its own position, at the same place.

        Raises:
            SettingsError: the source cannot have two positions.
        """
        loader = super().fork()
        loader._news = WorkerNews()
        return loader

    @property
    def step(self) -> int:
        """Number of completely served steps, over all epochs."""
        return self.order.step

    @property
    def ledger(self) -> BatchLedger:
        """Ledger of samples and tokens on all ranks that share the source, including this step."""
        return self.order.ledger

    def count_steps(self) -> int:
        """Count the steps of the whole epoch by composing it from lengths, for learning-rate
        schedules and progress.

        The result is the same at any moment of the epoch. It starts at the first step of this
        epoch, so that a warm-up continues.

        Raises:
            SettingsError: the source is a stream, whose end is unknown.
        """
        return self.order.count_steps()


class TokenBudgetBatches(ComposedBatches):
    """Micro-batches of one data-parallel rank, each filled with samples up to its token budget.

    All ranks compose the same micro-batches from the same lengths, and micro-batch ``k`` of a step
    goes to rank ``k`` modulo the number of ranks: all ranks have equal steps without
    communication::

        2 ranks, 2 micro-batches a step      composed    0 1 2 3 | 4 5 6 7 | 8
                                             rank 0      0   2   | 4   6   | 8   –     – : no loss (tail ``pad``)
                                             rank 1        1   3 |   5   7 |   –   –

    Three kinds of source:

    * By index, with ``lengths``: ``source[i]`` returns an ``EncodedSample``; a rank encodes only
      what it serves. Each epoch has its own order. A saved state holds sample numbers and no
      tokens. If ``source`` has ``__getitems__``, it is called with all samples of a micro-batch:
      ``EncodedSamples`` encodes them together.
    * A stream that all ranks read: an iterable of ``EncodedSample`` or ``Pack``. Every rank reads
      all of it. To save a state, the stream needs ``state_dict`` and ``load_state_dict``; the state
      holds the tokens of waiting samples. An iterable data set that takes its share in each worker
      (``get_worker_info``) is read by several as ``DataLoader(stream, batch_size=None,
      num_workers=n)``, and this loader is then iterated without workers: whether a stream shares
      its samples cannot be seen.
    * A separate stream on every rank: leave ``dp_world_size`` at 1 and give ``agree``.

    Iterating serves one epoch, after ``load_state_dict`` its remainder, and moves on to the next.

    Args:
        source: one of the three kinds. The ``set_epoch`` method of a stream is called if it exists.
        batching: ``TokenBudget`` (``dyn_bsz`` on) or ``SampleCount`` (off).
        collate_fn: turns a list of packs into a batch; the packs themselves if None.
        lengths: ``int[num_samples]``, tokens of each sample of a source by index; samples with a
            negative length are left out.
        loss_tokens: ``int[num_samples]``, number of targets of each sample; the first token is
            never a target. Needed with ``lengths`` for a budget that counts targets.
        dp_rank, dp_world_size: this rank among the ranks that see different data. TP, CP and PP
            peers share one.
        micro_batches: forward passes of one step (gradient accumulation).
        seed: seed of the order of a source by index; None keeps its order.
        tail: treatment of an incomplete last step: ``pad`` (batches without loss), ``drop``, or
            ``repeat`` (repeats its micro-batches).
        agree: ``RankAgreement(tail)``; or a function that is called once per step with true if this
            rank has a step, and returns true if all ranks serve it: reduced by MAX over the ranks
            with tail ``pad`` or ``repeat``, by MIN with ``drop``.

    >>> from brimful.testing.toys import toy_pack
    >>> stream = [toy_pack([length], first_sample=length) for length in (3, 5, 2, 4)]
    >>> batches = TokenBudgetBatches(stream, TokenBudget(8, min_buffered=2))
    >>> [[pack.sample_ids.tolist() for pack in batch] for batch in batches]
    [[[3, 5]], [[2, 4]]]
    """


class WindowBatches(ComposedBatches):
    """Packs of one data-parallel rank from an online window: ``Lookahead`` sees some samples ahead;
    nothing is stored.

    A micro-batch is one pack. All ranks plan the same packs from the same lengths, and micro-batch
    ``k`` of a step goes to rank ``k`` modulo the number of ranks: all ranks have equal steps, at
    the end of the samples too::

        2 ranks, 1 micro-batch a step        planned     0 1 | 2 3 | 4
                                             rank 0      0   | 2   | 4
                                             rank 1        1 |   3 |   –      – : no loss (tail ``pad``)

    Sources, arguments, state and steps are the same as in ``TokenBudgetBatches``: samples by index
    with ``lengths``, a stream that all ranks read, or a separate stream on every rank with
    ``agree``. If all lengths are known in advance, a plan of the whole (``plan_packs``,
    ``PackLoader``) has fuller packs.

    If PyTorch is imported, this is an ``IterableDataset``, for
    ``DataLoader(batches, batch_size=None)``, or without ``collate_fn`` for
    ``Trainer(train_dataset=batches, data_collator=PackCollator())``. With several workers, each
    makes every n-th micro-batch of samples by index, in the order of the loader; a stream needs a
    single worker, because it has one position. Workers have copies: get states from
    ``WorkerLoader``, and select an epoch with ``set_epoch`` before iterating. Workers that stay
    (``persistent_workers=True``) follow ``set_epoch``; if it is never called, they serve one epoch
    after another. After ``load_state_dict`` they refuse to go on.

    Args:
        source: samples by index, or a stream.
        batching: a ``Window``.
        collate_fn, lengths, dp_rank, dp_world_size, micro_batches, seed, tail, agree: see
            ``TokenBudgetBatches``.

    >>> from brimful.testing.toys import toy_pack
    >>> stream = [toy_pack([length], first_sample=number) for number, length in enumerate((7, 6, 4, 2, 5, 3))]
    >>> batches = WindowBatches(stream, Window(10, size=4))
    >>> [[pack.sample_ids.tolist() for pack in batch] for batch in batches]
    [[[1, 2]], [[0, 5]], [[4, 3]]]
    """
