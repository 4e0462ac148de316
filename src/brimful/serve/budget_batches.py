"""Serves one rank's micro-batches by a token budget, from samples by index or from a live stream."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from brimful.checks import check_type
from brimful.errors import CollateError, SettingsError, StateError
from brimful.fingerprint import differing_keys
from brimful.messages import counted
from brimful.plan.schedule import Tail
from brimful.serve.composer import BatchLedger, Composer, Piece
from brimful.serve.feeds import IndexedFeed, StreamFeed
from brimful.serve.loader import without_loss
from brimful.serve.token_budget import Count, SampleCount, TokenBudget
from brimful.shards import Pack
from brimful.typing import AnyIntArray

__all__ = ["TokenBudgetBatches"]

_VERSION = 1


class TokenBudgetBatches:
    """Micro-batches of one data-parallel rank, as many samples in each as its token budget holds.

    All ranks compose the same micro-batches from the same lengths, and number ``k`` of a step goes to rank ``k`` modulo
    the number of ranks: equal steps everywhere, nothing to agree on::

        2 ranks, 2 micro-batches a step      composed    0 1 2 3 | 4 5 6 7 | 8
                                             rank 0      0   2   | 4   6   | 8   –     – : no loss (tail ``pad``)
                                             rank 1        1   3 |   5   7 |   –   –

    Three kinds of source:

    * By index, with ``lengths``: ``source[i]`` gives an ``EncodedSample``; a rank encodes only what it serves. Each epoch
      has an order of its own. A saved state holds numbers of samples and no tokens.
    * A stream that all ranks read: an iterable of ``EncodedSample`` or ``Pack``. Every rank reads all of it. To save a
      state, the stream needs ``state_dict`` and ``load_state_dict``; the tokens of samples that wait are in the state.
    * A stream of its own on every rank: leave ``dp_world_size`` at 1 and give ``agree``.

    Iterating serves one epoch, or the rest of it after ``load_state_dict``, and moves on to the next.

    Args:
        source: as above. A ``set_epoch`` method is called, if there is one.
        batching: ``TokenBudget`` (``dyn_bsz`` on) or ``SampleCount`` (off).
        collate_fn: turns a list of packs into a batch; the packs themselves if None.
        lengths: ``int[num_samples]``, tokens of each sample of a source by index; negative ones are left out.
        loss_tokens: ``int[num_samples]``, targets of each sample, the first token never being one; needed with
            ``lengths`` where the budget counts targets.
        dp_rank, dp_world_size: this rank among those that see different data. TP, CP and PP peers share one.
        micro_batches: forwards of one step (gradient accumulation).
        seed: of the order of a source by index; None keeps its order.
        tail: of a last step that is not full: ``pad`` (batches without loss), ``drop``, or ``repeat`` (its own again).
        agree: called once a step with whether this rank has one; returns whether there is one. Reduce it by MAX over
            the ranks with tail ``pad`` or ``repeat``, by MIN with ``drop``.

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
        if not 0 <= dp_rank < dp_world_size:
            raise SettingsError(f"dp_rank must be from 0 to {dp_world_size - 1} and is {dp_rank}")
        if micro_batches < 1:
            raise SettingsError(f"micro_batches must be at least 1 and is {micro_batches}")
        if agree is not None and dp_world_size > 1:
            raise SettingsError("agree is for ranks that each read a stream of their own: leave dp_world_size at 1")
        by_targets = isinstance(batching, TokenBudget) and batching.count is Count.LOSS_TOKENS
        self._feed: IndexedFeed | StreamFeed
        if lengths is None:
            if loss_tokens is not None:
                raise SettingsError("loss_tokens goes with lengths: give both, or none for a stream")
            self._feed = StreamFeed(source, by_targets=by_targets)
        else:
            self._feed = IndexedFeed(source, lengths, loss_tokens, by_targets=by_targets, seed=seed)
        self._batching = batching
        self._collate = collate_fn if collate_fn is not None else list
        self._dp_rank, self._dp_world_size, self._micro_batches = dp_rank, dp_world_size, micro_batches
        self._tail = Tail.named(tail)
        self._agree = agree
        self._composer = Composer(batching)
        self._epoch = self._step = 0
        self._delivered = 0  # micro-batches of this step
        self._filler: Piece | None = None  # what a rank without a micro-batch runs, without loss
        self._first_step = 0  # of this epoch
        self._mine: list[list[Piece] | None] | None = None  # of this step, None: no loss; None between steps
        self._before: dict[str, Any] | None = None  # where the step began; None between steps
        self._feed.begin(0)

    @property
    def epoch(self) -> int:
        """Epoch that the next batch belongs to, once the one before is found to have ended."""
        return self._epoch

    @property
    def step(self) -> int:
        """Steps that were served whole, over all epochs."""
        return self._step

    @property
    def ledger(self) -> BatchLedger:
        """Where samples and tokens went, on all ranks that share the source, up to the step that is being served."""
        return self._composer.ledger

    def set_epoch(self, epoch: int) -> None:
        """Say which epoch is to be served: go to its beginning, unless it is the one being served.

        So training loops that call it before every epoch may call it after ``load_state_dict`` as well, and go on where
        the state was taken.
        """
        if epoch != self._epoch:
            self.begin_epoch(epoch)

    def begin_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, also of the one that is being served. What waits is dropped."""
        self._composer.restore((), BatchLedger())
        self._begin(int(epoch))

    def _begin(self, epoch: int) -> None:
        self._epoch, self._first_step, self._delivered = epoch, self._step, 0
        self._mine = self._before = None
        self._feed.begin(epoch)

    def __iter__(self) -> Iterator[Any]:
        while True:
            if self._mine is None:
                self._before = self._mark()
                self._mine = self._compose_step()
                if self._mine is None:
                    if self._delivered:
                        raise StateError(
                            f"the loader state is {self._delivered} micro-batches into step {self._step}, which the "
                            f"source does not have"
                        )
                    self._begin(self._epoch + 1)
                    return
            batch = self._collate(self._packs(self._mine[self._delivered]))
            self._delivered += 1
            if self._delivered == self._micro_batches:
                self._mine, self._before, self._delivered = None, None, 0
                self._step += 1
            yield batch

    def _compose_step(self) -> list[list[Piece] | None] | None:
        """This rank's micro-batches of the next step; None at the end of the epoch."""
        places = self._dp_world_size * self._micro_batches
        composer, feed = self._composer, self._feed
        composed: list[list[Piece] | None] = []
        feed.forget(composer.waiting, self._filler)
        composer.begin_step()
        try:
            while len(composed) < places:
                while not composer.is_ready(self._step) and feed.pull(composer):
                    pass
                if not len(composer):
                    break
                composed.append(composer.take(self._step))
        except BaseException:  # whatever the source raised: who goes on after it finds what was taken here waiting
            composer.put_back()
            raise
        full = len(composed) == places
        going_on = full if self._tail is Tail.DROP else bool(composed)
        if self._agree is not None:
            going_on = self._agree(going_on)
        if not going_on:
            # Under drop another rank may have ended first, and then what waits here goes with the step.
            while len(composer):
                composed.append(composer.take(self._step))
            for micro_batch in composed:
                composer.drop(micro_batch or ())
            return None
        if composed and composed[0]:
            self._filler = composed[0][0]
        if not full:
            repeated = composed if self._tail is Tail.REPEAT and composed else [None]
            composed += [repeated[place % len(repeated)] for place in range(places - len(composed))]
        return composed[self._dp_rank :: self._dp_world_size]

    def _packs(self, pieces: list[Piece] | None) -> list[Pack]:
        if pieces is not None:
            return self._feed.packs(pieces)
        if self._filler is None:
            raise CollateError("this rank's stream gave no sample at all, so it has nothing to run beside the others")
        return [without_loss(pack) for pack in self._feed.packs([self._filler])]

    def count_steps(self) -> int:
        """Steps of the epoch from its beginning, composed from the lengths: for learning rates and progress.

        The same at any moment of the epoch, and with ``step`` served before it, so that a warm-up is where it is.

        Raises:
            SettingsError: the source is a stream, whose end nobody knows.
        """
        if not isinstance(self._feed, IndexedFeed):
            raise SettingsError("a stream has no number of steps; give a source by index and its lengths")
        places = self._dp_world_size * self._micro_batches
        feed, composer = self._feed.copy(), Composer(self._batching)
        feed.begin(self._epoch)
        composed = 0
        while True:
            step = self._first_step + composed // places
            while not composer.is_ready(step) and feed.pull(composer):
                pass
            if not len(composer):
                break
            composer.take(step)
            composed += 1
        return composed // places if self._tail is Tail.DROP else -(-composed // places)

    def _mark(self) -> dict[str, Any]:
        """Where the loader stands between two steps: references, not yet JSON."""
        return {
            "feed": self._feed.mark(),
            "waiting": self._composer.waiting,
            "filler": self._filler,
            "ledger": self._composer.ledger,
        }

    def _identity(self) -> dict[str, Any]:
        return {
            "version": _VERSION,
            "batching": self._batching.as_dict(),
            "source": self._feed.identity,
            "tail": self._tail.value,
        }

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, for JSON: what was delivered counts, what a consumer prefetched does not.

        With ranks that share a source it is the same on all of them, and between two steps it may be loaded with another
        number of ranks or of micro-batches.

        Raises:
            StateError: the source is a stream that cannot say where it stands.
        """
        at = self._before or self._mark()
        return {
            **self._identity(),
            "dp_world_size": self._dp_world_size,
            "micro_batches": self._micro_batches,
            "epoch": self._epoch,
            "step": self._step,
            "first_step_of_epoch": self._first_step,
            "micro_batches_delivered": self._delivered,
            "ledger": at["ledger"].as_dict(),
            **self._feed.save(at["feed"], at["waiting"], at["filler"]),
        }

    def __repr__(self) -> str:
        return (
            f"TokenBudgetBatches({self._feed!r}, dp_rank {self._dp_rank} of {self._dp_world_size}, epoch {self._epoch}, "
            f"step {self._step:,}, {counted(len(self._composer), 'sample')} waiting)"
        )

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on where a state was taken.

        Raises:
            StateError: the state is of other samples or settings, damaged, or within a step of other ranks; names which.
        """
        own = self._identity()
        if state.get("micro_batches_delivered") != 0:
            own |= {"dp_world_size": self._dp_world_size, "micro_batches": self._micro_batches}
        differing = differing_keys(own, {key: state.get(key) for key in own})
        if differing:
            shown = ", ".join(f"{key} ({state.get(key)} in the state, {own[key]} here)" for key in differing)
            raise StateError(f"the loader state does not fit: {shown}")
        try:
            delivered, epoch, step = (int(state[key]) for key in ("micro_batches_delivered", "epoch", "step"))
            # States of before it was saved: right in the first epoch, and in the others where no warm-up goes on.
            first_step = int(state.get("first_step_of_epoch", step if epoch else 0))
            if not 0 <= delivered < self._micro_batches or epoch < 0 or not 0 <= first_step <= step:
                raise StateError(
                    f"the loader state is damaged: epoch {epoch} from step {first_step} on, step {step}, {delivered} "
                    f"delivered"
                )
            ledger = BatchLedger(**state["ledger"])
            waiting, filler = self._feed.load(state, epoch)
        except (KeyError, TypeError, ValueError) as error:
            if isinstance(error, StateError):
                raise
            raise StateError(f"the loader state is damaged ({type(error).__name__}: {error})") from error
        self._composer.restore(waiting, ledger)
        self._filler, self._epoch, self._step, self._first_step = filler, epoch, step, first_step
        self._mine, self._before, self._delivered = None, None, delivered  # it is composed again when it goes on
