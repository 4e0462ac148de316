"""Loader of one rank's micro-batches by a token budget, from samples or a live stream."""

from collections.abc import Callable, Iterator, Sequence
from copy import copy
from itertools import count
from typing import Any, NamedTuple

from brimful.checks import check_type, setting_number
from brimful.errors import CollateError, SettingsError, StateError
from brimful.measure.table import LengthTable
from brimful.messages import counted
from brimful.plan.schedule import Tail
from brimful.serve.compose import BatchLedger, MicroBatchComposer, SampleSegment
from brimful.serve.loader import RankLoader, check_state, without_loss
from brimful.serve.sample_feeds import IndexedSampleFeed, SampleFeed, StreamSampleFeed, held_segments
from brimful.serve.token_budget import Count, SampleCount, TokenBudget
from brimful.shards import Pack
from brimful.typing import AnyIntArray

_VERSION = 1
"""Version in every state; states of others are refused."""


class _StepMark(NamedTuple):
    """Position between two steps, as references. It becomes JSON only when a state is asked for."""

    position: dict[str, Any]
    waiting: Sequence[SampleSegment]
    filler: SampleSegment | None
    ledger: BatchLedger


class TokenBudgetBatches(RankLoader):
    """Micro-batches of one data-parallel rank, each filled with samples up to its token budget.

    All ranks compose the same micro-batches from the same lengths, and number ``k`` of a step goes to rank ``k`` modulo
    the number of ranks: equal steps everywhere, nothing to agree on::

        2 ranks, 2 micro-batches a step      composed    0 1 2 3 | 4 5 6 7 | 8
                                             rank 0      0   2   | 4   6   | 8   –     – : no loss (tail ``pad``)
                                             rank 1        1   3 |   5   7 |   –   –

    Three kinds of source:

    * By index, with ``lengths``: ``source[i]`` gives an ``EncodedSample``; a rank encodes only what it serves. Each epoch
      has an order of its own. A saved state holds numbers of samples and no tokens. ``source.__getitems__`` is asked for
      the samples of a micro-batch together, if there is one: ``EncodedSamples`` encodes them at once.
    * A stream that all ranks read: an iterable of ``EncodedSample`` or ``Pack``. Every rank reads all of it. To save a
      state, the stream needs ``state_dict`` and ``load_state_dict``; the state holds the tokens of waiting samples.
    * A separate stream on every rank: leave ``dp_world_size`` at 1 and give ``agree``.

    Iterating serves one epoch, after ``load_state_dict`` the remainder of it, and moves on to the next.

    Args:
        source: one of the three kinds. Its ``set_epoch`` method is called, if there is one.
        batching: ``TokenBudget`` (``dyn_bsz`` on) or ``SampleCount`` (off).
        collate_fn: turns a list of packs into a batch; the packs themselves if None.
        lengths: ``int[num_samples]``, tokens of each sample of a source by index; negative ones are left out.
        loss_tokens: ``int[num_samples]``, targets of each sample, the first token never being one; needed with
            ``lengths`` for a budget that counts targets.
        dp_rank, dp_world_size: this rank among those that see different data. TP, CP and PP peers share one.
        micro_batches: forwards of one step (gradient accumulation).
        seed: of the order of a source by index; None keeps its order.
        tail: of a last step that is not full: ``pad`` (batches without loss), ``drop``, or ``repeat`` (its own again).
        agree: called once a step with true if this rank has one; returns true if all ranks serve it. Reduce it by MAX
            over the ranks with tail ``pad`` or ``repeat``, by MIN with ``drop``.

    >>> from brimful.testing.toys import toy_pack
    >>> stream = [toy_pack([length], first_sample=length) for length in (3, 5, 2, 4)]
    >>> batches = TokenBudgetBatches(stream, TokenBudget(8, min_buffered=2))
    >>> [[pack.sample_ids.tolist() for pack in batch] for batch in batches]
    [[[3, 5]], [[2, 4]]]
    """

    def __init__(
        self,
        source: Any,
        batching: TokenBudget | SampleCount,
        collate_fn: Callable[[list[Pack]], Any] | None = None,
        *,
        lengths: AnyIntArray | Sequence[int] | None = None,
        loss_tokens: AnyIntArray | Sequence[int] | None = None,
        dp_rank: int = 0,
        dp_world_size: int = 1,
        micro_batches: int = 1,
        seed: int | None = 0,
        tail: Tail | str = Tail.PAD,
        agree: Callable[[bool], bool] | None = None,
    ) -> None:
        check_type("batching", batching, (TokenBudget, SampleCount), "a TokenBudget or a SampleCount")
        if isinstance(source, (str, bytes)) or not (hasattr(source, "__iter__") or hasattr(source, "__getitem__")):
            check_type("source", source, (), "samples by index or as a stream")
        super().__init__(collate_fn, dp_rank=dp_rank, dp_world_size=dp_world_size, tail=tail)
        self._micro_batches = setting_number("micro_batches", micro_batches, minimum=1)
        if agree is not None and dp_world_size > 1:
            raise SettingsError("agree is for ranks that each read a stream of their own: leave dp_world_size at 1")
        by_targets = isinstance(batching, TokenBudget) and batching.count is Count.LOSS_TOKENS
        self._feed: SampleFeed
        if isinstance(lengths, LengthTable) and lengths.group_size > 1:
            raise SettingsError(
                "micro-batches of a token budget take single samples, and both sides of a preference stay together: "
                "serve them from packs (PackLoader)"
            )
        if lengths is not None:
            self._feed = IndexedSampleFeed(source, lengths, loss_tokens, by_targets=by_targets, seed=seed)
        elif loss_tokens is not None:
            raise SettingsError("loss_tokens goes with lengths: give both, or none for a stream")
        else:
            self._feed = StreamSampleFeed(source, by_targets=by_targets)
        self._batching = batching
        self._agree = agree
        self._composer = MicroBatchComposer(batching)
        self._step = 0
        self._num_delivered = 0  # micro-batches of this step
        self._filler: SampleSegment | None = None  # served without loss by a rank that has no micro-batch
        self._first_step = 0  # of this epoch
        # Both of the step in progress, and None between steps. A batch that is None has no loss.
        self._rank_batches: list[list[SampleSegment] | None] | None = None
        self._step_mark: _StepMark | None = None
        self._feed.begin(0)

    @property
    def step(self) -> int:
        """Number of steps that were served in full, over all epochs."""
        return self._step

    @property
    def ledger(self) -> BatchLedger:
        """Account of samples and tokens on all ranks that share the source, this step included."""
        return self._composer.ledger

    def begin_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, also of the one that is being served. Waiting samples are dropped."""
        self._composer.restore((), BatchLedger())
        self._begin(int(epoch))

    def _begin(self, epoch: int) -> None:
        self._epoch, self._first_step, self._num_delivered = epoch, self._step, 0
        self._rank_batches = self._step_mark = None
        self._feed.begin(epoch)

    def __iter__(self) -> Iterator[Any]:
        while True:
            if self._rank_batches is None:
                # A state saved within a step holds the step's beginning: loading it composes the same step again.
                self._step_mark = self._mark()
                self._rank_batches = self._compose_step()
                if self._rank_batches is None:
                    if self._num_delivered:
                        raise StateError(
                            f"the loader state is {self._num_delivered} micro-batches into step {self._step}, which the "
                            f"source does not have"
                        )
                    self._begin(self._epoch + 1)
                    return
            batch = self._collate(self._packs(self._rank_batches[self._num_delivered]))
            # Count the batch once it is made and before it leaves, so that a state saved while it trains is behind it.
            self._num_delivered += 1
            if self._num_delivered == self._micro_batches:
                self._rank_batches, self._step_mark, self._num_delivered = None, None, 0
                self._step += 1
            yield batch

    def _compose_step(self) -> list[list[SampleSegment] | None] | None:
        """Return this rank's micro-batches of the next step; None at the end of the epoch."""
        num_places = self._dp_world_size * self._micro_batches
        composer, feed = self._composer, self._feed
        batches: list[list[SampleSegment] | None] = []
        feed.drop_except(held_segments(composer.waiting, self._filler))
        composer.begin_step()
        try:
            while len(batches) < num_places and (batch := composer.next_batch(self._step, feed.pull)) is not None:
                batches.append(batch)
        except BaseException:
            # A caller that goes on after an error of the source finds the samples of this step waiting again.
            composer.put_back()
            raise
        is_full = len(batches) == num_places
        is_served = is_full if self._tail is Tail.DROP else bool(batches)
        if self._agree is not None:
            is_served = self._agree(is_served)
        if not is_served:
            # Under drop another rank may have ended first; then the samples that wait here go with the step.
            while len(composer):
                batches.append(composer.take(self._step))
            for dropped_batch in batches:
                composer.drop(dropped_batch or ())
            return None
        if batches and batches[0]:
            self._filler = batches[0][0]
        # Every rank gets the same number of micro-batches, also in a last step that is not full.
        if not is_full:
            substitutes = batches if self._tail is Tail.REPEAT and batches else [None]
            batches += [substitutes[place % len(substitutes)] for place in range(num_places - len(batches))]
        return batches[self._dp_rank :: self._dp_world_size]

    def _packs(self, segments: list[SampleSegment] | None) -> list[Pack]:
        """Return the packs of a micro-batch; for None the filler without loss."""
        if segments is not None:
            return self._feed.packs(segments)
        if self._filler is None:
            raise CollateError("this rank's stream gave no sample at all, so it has nothing to run beside the others")
        return [without_loss(pack) for pack in self._feed.packs([self._filler])]

    def count_steps(self) -> int:
        """Count the steps of the whole epoch, composed from the lengths. For learning rates and progress.

        The same at any moment of the epoch, and with ``step`` served before it, so that a warm-up keeps its place.

        Raises:
            SettingsError: the source is a stream, whose end nobody knows.
        """
        if not isinstance(self._feed, IndexedSampleFeed):
            raise SettingsError("a stream has no number of steps; give a source by index and its lengths")
        num_places = self._dp_world_size * self._micro_batches
        # A feed and a composer of their own: the samples that wait here belong to the epoch being served.
        feed, composer = copy(self._feed), MicroBatchComposer(self._batching)
        feed.begin(self._epoch)
        for num_batches in count():
            if composer.next_batch(self._first_step + num_batches // num_places, feed.pull) is None:
                break
        return num_batches // num_places if self._tail is Tail.DROP else -(-num_batches // num_places)

    def _mark(self) -> _StepMark:
        return _StepMark(self._feed.position(), self._composer.waiting, self._filler, self._composer.ledger)

    def _identity(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "batching": self._batching.as_dict(),
            "source": self._feed.identity,
            "tail": self._tail.value,
        }

    def state_dict(self) -> dict[str, Any]:
        """Return the position for JSON, which counts delivered batches, not those that a consumer prefetched.

        With ranks that share a source it is the same on all of them, and between two steps it may be loaded with another
        number of ranks or of micro-batches.

        Raises:
            StateError: the source is a stream without ``state_dict``.
        """
        mark = self._step_mark or self._mark()
        return {
            **self._identity(),
            "dp_world_size": self._dp_world_size,
            "micro_batches": self._micro_batches,
            "epoch": self._epoch,
            "step": self._step,
            "first_step_of_epoch": self._first_step,
            "micro_batches_delivered": self._num_delivered,
            "ledger": mark.ledger.as_dict(),
            **self._feed.save(mark.position, mark.waiting, mark.filler),
        }

    def __repr__(self) -> str:
        return (
            f"TokenBudgetBatches({self._feed!r}, dp_rank {self._dp_rank} of {self._dp_world_size}, epoch {self._epoch}, "
            f"step {self._step:,}, {counted(len(self._composer), 'sample')} waiting)"
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go to the position of a state.

        Raises:
            StateError: the state is of other samples or settings, damaged, or within a step of other ranks; names the
                difference.
        """
        own_state = self._identity()
        # Within a step the ranks share its micro-batches out; between steps other ranks may take over.
        if state.get("micro_batches_delivered") != 0:
            own_state |= {"dp_world_size": self._dp_world_size, "micro_batches": self._micro_batches}
        check_state(state, own_state, sorted(own_state))
        try:
            num_delivered, epoch, step = (int(state[key]) for key in ("micro_batches_delivered", "epoch", "step"))
            # Earlier versions did not save it: right in the first epoch, and in others unless a warm-up goes on.
            first_step = int(state.get("first_step_of_epoch", step if epoch else 0))
            if not 0 <= num_delivered < self._micro_batches or epoch < 0 or not 0 <= first_step <= step:
                raise StateError(
                    f"the loader state is damaged: epoch {epoch} from step {first_step} on, step {step}, {num_delivered} "
                    f"delivered"
                )
            ledger = BatchLedger(**state["ledger"])
            segments, filler = self._feed.load(state, epoch)
        except StateError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise StateError(f"the loader state is damaged ({type(error).__name__}: {error})") from error
        self._composer.restore(segments, ledger)
        self._filler, self._epoch, self._step, self._first_step = filler, epoch, step, first_step
        # The step is composed again when iterating goes on.
        self._rank_batches, self._step_mark, self._num_delivered = None, None, num_delivered
