"""Order of micro-batches that are composed during training: each step is composed on every rank
from the samples of all ranks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any, NamedTuple, TypeAlias

from brimful.base.checks import setting_number
from brimful.base.fingerprint import fingerprint_of
from brimful.base.wording import counted
from brimful.dynamic.agreement import RankAgreement
from brimful.dynamic.compose import BatchLedger, ComposerMark, MicroBatchComposer, SampleSegment
from brimful.dynamic.online_window import Window, WindowComposer
from brimful.dynamic.sample_feeds import IndexedSampleFeed, SampleFeed
from brimful.dynamic.token_budget import SampleCount, TokenBudget
from brimful.errors import CollateError, SettingsError, StateError
from brimful.plan.schedule import Tail
from brimful.serve.order import (
    Order,
    Position,
    RankSettings,
    Request,
    check_state,
    make_state,
)

Batching: TypeAlias = TokenBudget | SampleCount | Window

_OWN_STREAM = "own_stream"
"""Key of a state: the rank whose own stream was read, and the number of ranks; absent if ranks
share a source.
"""


class _StepMark(NamedTuple):
    """Position between two steps, as references. It becomes JSON only when a state is requested."""

    position: dict[str, Any]
    composer: ComposerMark
    filler: list[SampleSegment]


class ComposedOrder(Order):
    """Micro-batches that a composer makes from the lengths of a feed, distributed over the ranks of
    each step.

    All ranks compose the same micro-batches; a state holds what waits in the feed and in the
    composer between two steps.

    Attributes:
        feed: the samples.
        step: number of completely served steps, over all epochs.

    Args:
        batching: how samples become micro-batches.
        agree: see ``TokenBudgetBatches``.
    """

    def __init__(
        self,
        feed: SampleFeed,
        batching: Batching,
        settings: RankSettings,
        agree: Callable[[bool], bool] | None,
    ) -> None:
        super().__init__(settings.dp_rank, settings.dp_world_size, settings.tail)
        self._micro_batches = setting_number("micro_batches", settings.micro_batches, minimum=1)
        self.feed, self._batching, self._agree = feed, batching, agree
        self._composer = composer_of(batching)
        self.step = 0
        self._num_delivered = 0  # micro-batches of this step
        # A whole micro-batch, served without loss by a rank without one: of its samples any may be
        # the one with media.
        self._filler: list[SampleSegment] = []
        self._first_step = 0  # first step of this epoch
        # Both belong to the step in progress, and are None between steps. A batch of None has no
        # loss.
        self._rank_batches: list[list[SampleSegment] | None] | None = None
        self._step_mark: _StepMark | None = None
        feed.start(0)

    @property
    def ledger(self) -> BatchLedger:
        """Ledger of samples and tokens on all ranks that share the source, including this step."""
        return self._composer.ledger

    def start_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, which may be the current one. Waiting samples are
        dropped.
        """
        self._composer = composer_of(self._batching)
        self._start(int(epoch))

    def finish_epoch(self) -> None:
        """Count the steps of this epoch as served, on which the warm-up of the next one depends."""
        if getattr(self._batching, "warmup", None) and isinstance(self.feed, IndexedSampleFeed):
            self.step = self._first_step + self.count_steps()

    def _start(self, epoch: int) -> None:
        self.epoch, self._first_step, self._num_delivered = epoch, self.step, 0
        self._rank_batches = self._step_mark = None
        self.feed.start(epoch)

    def next_request(self) -> Request | None:
        """Return the next micro-batch; at the end of an epoch move to the next epoch and return
        None.
        """
        if self._rank_batches is None:
            # A state saved within a step holds the beginning of the step: loading it composes the
            # same step again.
            self._step_mark = self._step_mark or self._mark()
            self._rank_batches = self._compose_step(self._step_mark)
            if self._rank_batches is None:
                if self._num_delivered:
                    raise StateError(
                        f"the loader state is {self._num_delivered} micro-batches into step "
                        f"{self.step}, which the source does not have"
                    )
                self._start(self.epoch + 1)
                return None
        segments = self._rank_batches[self._num_delivered]
        if segments is None and not self._filler:
            raise CollateError(
                "this rank's stream gave no sample at all, so it has nothing to run with the "
                "other ranks"
            )
        return Request(
            self._filler if segments is None else segments, has_loss=segments is not None
        )

    def advance(self) -> bool:
        """Count the next micro-batch as served; only the next request shows whether it was the
        last.
        """
        self._num_delivered += 1
        if self._num_delivered == self._micro_batches:
            self._rank_batches, self._step_mark, self._num_delivered = None, None, 0
            self.step += 1
        return False

    def fork(self) -> ComposedOrder:
        """Return an order of the same samples and settings with its own position, at the same
        place.

        Raises:
            SettingsError: the samples are a stream, or the ranks agree on each step.
        """
        if self._agree is not None:
            raise SettingsError(
                "agree asks the other ranks in each step, and workers cannot: iterate the loader "
                "itself"
            )
        order = super().fork()
        order.feed, order._composer = self.feed.fork(), composer_of(self._batching)
        order._composer.go_to(self._composer.mark())
        return order

    def _compose_step(self, mark: _StepMark) -> list[list[SampleSegment] | None] | None:
        """Return this rank's micro-batches of the next step; None at the end of the epoch."""
        num_slots = self.dp_world_size * self._micro_batches
        composer, feed = self._composer, self.feed
        batches: list[list[SampleSegment] | None] = []
        feed.drop_except([*mark.composer.segments, *self._filler])
        try:
            while (
                len(batches) < num_slots
                and (batch := composer.next_batch(self.step, feed.pull)) is not None
            ):
                batches.append(batch)
        except BaseException:
            # A caller that continues after an error of the source composes the same step again.
            composer.go_to(mark.composer)
            feed.go_back(mark.position)
            if isinstance(self._agree, RankAgreement):
                self._agree.fail()
            raise
        is_full = len(batches) == num_slots
        is_served = is_full if self.tail is Tail.DROP else bool(batches)
        if isinstance(self._agree, RankAgreement):
            is_served = self._agree(is_served, can_run=bool(batches or self._filler))
        elif self._agree is not None:
            is_served = self._agree(is_served)
        if not is_served:
            # With drop another rank may have ended first; then the samples that wait here are
            # dropped with the step.
            while len(composer):
                batches.append(composer.take(self.step))
            for dropped_batch in batches:
                composer.drop(dropped_batch or ())
            return None
        if batches and batches[0]:
            self._filler = batches[0]
        # Every rank gets the same number of micro-batches, also in an incomplete last step.
        if not is_full:
            substitutes = batches if self.tail is Tail.REPEAT and batches else [None]
            batches += [
                substitutes[slot % len(substitutes)] for slot in range(num_slots - len(batches))
            ]
        return batches[self.dp_rank :: self.dp_world_size]

    def count_steps(self) -> int:
        """Count the steps of the whole epoch (``TokenBudgetBatches.count_steps``)."""
        if not isinstance(self.feed, IndexedSampleFeed):
            raise SettingsError(
                "a stream has no number of steps; give a source by index and its lengths"
            )
        num_slots = self.dp_world_size * self._micro_batches
        # Use a separate feed and composer: the samples that wait here belong to the current epoch.
        feed, composer = self.feed.fork(), composer_of(self._batching)
        feed.start(self.epoch)
        for num_batches in count():
            if composer.next_batch(self._first_step + num_batches // num_slots, feed.pull) is None:
                break
        return num_batches // num_slots if self.tail is Tail.DROP else -(-num_batches // num_slots)

    def _mark(self) -> _StepMark:
        # Only a rank with a stream of its own serves a step that has none of its samples.
        filler = self._filler if self._agree else []
        return _StepMark(self.feed.position(), self._composer.mark(), filler)

    def state_dict(self) -> dict[str, Any]:
        """Return the position for JSON; it counts delivered batches, not batches that a consumer
        prefetched.

        If ranks share a source, the state is the same on all of them, and between two steps it may
        be loaded with another number of ranks or micro-batches: the samples continue in their
        order, and with the same number of micro-batches in a step the steps are the same. If each
        rank reads its own stream, each rank has its own state, which only that rank can load.

        Raises:
            StateError: the source is a stream without ``state_dict``.
        """
        mark = self._step_mark or self._mark()
        num_slots = self._num_delivered * self.dp_world_size
        return make_state(
            "composed",
            fingerprint_of(self.feed.identity),
            Position(self.epoch, self.step - self._first_step, num_slots),
            self.feed.facts,
            **self._identity(),
            shape=[self.dp_world_size, self._micro_batches],
            first_step=self._first_step,
            ledger=mark.composer.ledger.as_dict(),
            plan=mark.composer.plan,
            **({} if self._own_stream is None else {_OWN_STREAM: self._own_stream}),
            **self.feed.position_to_json(mark.position, [*mark.composer.segments, *mark.filler]),
            waiting=[list(segment) for segment in mark.composer.segments],
            filler=[list(segment) for segment in mark.filler],
        )

    @property
    def _own_stream(self) -> list[int] | None:
        """This rank and the number of ranks if each reads its own stream; None for a shared source
        or a function.
        """
        return list(self._agree.rank_and_size) if isinstance(self._agree, RankAgreement) else None

    def _check_own_stream(self, state: Mapping[str, Any]) -> None:
        """Refuse the state of another rank's stream."""
        saved, own = state.get(_OWN_STREAM), self._own_stream
        if saved is None or saved == own or (own is None and self._agree is not None):
            return
        rank, num_ranks = saved
        here = (
            "this loader reads no stream of its own (agree)"
            if own is None
            else f"this is rank {own[0]} of {own[1]}"
        )
        raise StateError(
            f"the loader state is of the stream that rank {rank} of {num_ranks} read, and {here}: "
            "load on every rank the state that it saved itself, with the same number of ranks"
        )

    def _identity(self) -> dict[str, Any]:
        return {
            "batching": self._batching.as_dict(),
            "source": self.feed.identity,
            "tail": self.tail.value,
        }

    def __repr__(self) -> str:
        return (
            f"{self.feed!r}, dp_rank {self.dp_rank} of {self.dp_world_size}, epoch {self.epoch}, "
            f"step {self.step:,}, {counted(len(self._composer), 'sample')} waiting"
        )

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go to the position of a state.

        Raises:
            StateError: the state belongs to other samples or settings, or to the stream of another
                rank; is damaged; or was saved within a step by other ranks. Names the difference.
        """
        own_state = make_state(
            "composed",
            fingerprint_of(self.feed.identity),
            Position(0, 0, 0),
            self.feed.facts,
            **self._identity(),
        )
        epoch, step, num_slots = check_state(state, own_state, ["batching", "tail"])
        self._check_own_stream(state)
        world_size, micro_batches = state["shape"]
        first_step = state["first_step"]
        shape = [self.dp_world_size, self._micro_batches]
        # Within a step its micro-batches belong to fixed ranks; between steps other ranks may
        # continue.
        if num_slots and [world_size, micro_batches] != shape:
            raise StateError(
                f"the loader state was saved within a step, after {num_slots} of its "
                f"micro-batches, by {world_size} ranks × {micro_batches}, and this run has "
                f"{shape[0]} × {shape[1]}: save at the end of a step, or load it there"
            )
        segments = [SampleSegment(*row) for row in state["waiting"]]
        filler = [SampleSegment(*row) for row in state["filler"]]
        self.feed.load(state, epoch)
        self._composer.go_to(ComposerMark(segments, BatchLedger(**state["ledger"]), state["plan"]))
        if not num_slots and world_size * micro_batches != self.dp_world_size * self._micro_batches:
            logging.getLogger("brimful").warning(
                "continues with steps of %d × %d micro-batches, previously %d × %d: the same "
                "samples in the same order",
                *shape,
                world_size,
                micro_batches,
            )
        self._filler, self.epoch, self.step, self._first_step = (
            filler,
            epoch,
            first_step + step,
            first_step,
        )
        # The step is composed again when iteration continues.
        self._rank_batches, self._step_mark, self._num_delivered = (
            None,
            None,
            num_slots // world_size,
        )


def composer_of(batching: Batching) -> MicroBatchComposer:
    """Return the composer for these settings."""
    return (
        WindowComposer(batching) if isinstance(batching, Window) else MicroBatchComposer(batching)
    )
