"""Which samples go together in a micro-batch, while samples still come in."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple

from brimful.errors import OversizedSampleError, SettingsError
from brimful.plan import Overflow
from brimful.serve.token_budget import Count, Fit, SampleCount, TokenBudget

__all__ = ["BatchLedger", "Composer", "Piece", "compose"]


class Piece(NamedTuple):
    """A sample, or the part of it that the overflow policy kept, waiting for its micro-batch."""

    key: int
    """Number of the sample in its source."""
    start: int
    """First token of the sample in the piece."""
    length: int
    """Tokens."""
    counted: int
    """What it takes of the budget; 0 is possible where targets are counted."""
    samples: int
    """1, but for parts of a split sample, whose last part has the 1, and for packs of several samples."""


@dataclass
class BatchLedger:
    """Where samples and tokens went: in = packed + dropped + carried (+ truncated, by token). Checked when asked for."""

    samples_in: int = 0
    tokens_in: int = 0
    samples_packed: int = 0
    tokens_packed: int = 0
    samples_dropped: int = 0
    tokens_dropped: int = 0
    samples_truncated: int = 0
    tokens_truncated: int = 0
    samples_carried: int = 0
    tokens_carried: int = 0
    samples_rejected: int = 0
    micro_batches: int = 0

    def check(self) -> BatchLedger:
        """Itself, if it adds up."""
        samples = self.samples_packed + self.samples_dropped + self.samples_carried + self.samples_rejected
        tokens = self.tokens_packed + self.tokens_dropped + self.tokens_carried + self.tokens_truncated
        assert samples == self.samples_in, f"{samples} samples accounted for, {self.samples_in} came in"
        assert tokens == self.tokens_in, f"{tokens} tokens accounted for, {self.tokens_in} came in"
        return self

    def as_dict(self) -> dict[str, int]:
        """For JSON."""
        return {field.name: getattr(self, field.name) for field in fields(self)}


class Composer:
    """Samples in, micro-batches out. Knows lengths only; holds the samples that wait.

    ::

        budget 32, lengths 1 2 3 …      waiting                     leaves
        1 … 8 came in: 36 tokens        1 2 3 4 5 6 7 8             1 2 3 4 5 6 7     28
        9 10 11                         8 9 10 11                   8 9 10            27
        12 13                           11 12 13                    11 12             23

    The sample that waited longest always goes, so none waits for ever; and others join it while they fit into
    what is left of budget and capacity (``Fit``).

    Cost: a micro-batch costs time in the samples that wait, which are about ``min_buffered``, and not in those that
    came before or will come. Source: VeOmni's dynamic batching; the exact fit is a subset sum on the bits of one
    long integer (Bellman 1957).
    """

    def __init__(self, settings: TokenBudget | SampleCount) -> None:
        self.settings = settings
        self._capacity = settings.capacity if isinstance(settings, TokenBudget) else None
        self._overflow = settings.overflow if isinstance(settings, TokenBudget) else Overflow.ERROR
        self._waiting: list[Piece] = []
        self._arrived: list[Piece] | None = None  # waiting when the step began, and all that came since
        self._composed_before = 0
        self._length = self._counted = 0
        self._ledger = BatchLedger()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> Sequence[Piece]:
        """Pieces that no micro-batch holds yet, in order of arrival."""
        return tuple(self._waiting)

    @property
    def waiting_tokens(self) -> tuple[int, int]:
        """Of the pieces that wait: what they take of the budget, and all their tokens."""
        return self._counted, self._length

    @property
    def ledger(self) -> BatchLedger:
        """A copy of the account; asserts that it adds up."""
        carried = sum(piece.samples for piece in self._waiting)
        counts = {**self._ledger.as_dict(), "samples_carried": carried, "tokens_carried": self._length}
        return BatchLedger(**counts).check()

    def restore(self, waiting: Iterable[Piece], ledger: BatchLedger) -> None:
        """Go back to where ``waiting`` and ``ledger`` were read."""
        self._waiting, self._arrived = list(waiting), None
        self._length = sum(piece.length for piece in self._waiting)
        self._counted = sum(piece.counted for piece in self._waiting)
        self._ledger = BatchLedger(**ledger.as_dict())

    def begin_step(self) -> None:
        """From here on, ``put_back`` can undo what is taken."""
        self._arrived, self._composed_before = list(self._waiting), self._ledger.micro_batches

    def reject(self) -> None:
        """Account for a sample that could not be read."""
        self._ledger.samples_in += 1
        self._ledger.samples_rejected += 1

    def add(self, key: int, length: int, counted: int, *, samples: int = 1) -> None:
        """One sample came in.

        Args:
            key: number of the sample.
            length: tokens.
            counted: what it takes of the budget: ``length``, or its targets.
            samples: more than 1 for a pack, which is never cut.

        Raises:
            OversizedSampleError: longer than the capacity, and the policy is ``error`` or cannot cut it.
        """
        account = self._ledger
        capacity, policy = self._capacity, self._overflow
        fits = capacity is None or length <= capacity
        if not fits and policy is not Overflow.DROP and (policy is Overflow.ERROR or samples > 1):
            what = f"sample {key}" if samples == 1 else f"the pack of {samples} samples at {key}"
            ways = "Choose overflow drop, truncate, truncate_left or split" if samples == 1 else "Choose overflow drop"
            raise OversizedSampleError(
                f"{what} has {length:,} tokens and a micro-batch holds at most {capacity:,}. {ways}, or raise capacity"
            )
        account.samples_in += samples
        account.tokens_in += length
        if capacity is None or fits:
            self._push(Piece(key, 0, length, counted, samples))
        elif policy is Overflow.DROP:
            account.samples_dropped += samples
            account.tokens_dropped += length
        elif policy is Overflow.SPLIT:
            for start in range(0, length, capacity):
                size = min(capacity, length - start)
                self._push(Piece(key, start, size, min(counted, size), int(start + size == length)))
        else:
            account.samples_truncated += 1
            account.tokens_truncated += length - capacity
            start = length - capacity if policy is Overflow.TRUNCATE_LEFT else 0
            self._push(Piece(key, start, capacity, min(counted, capacity), 1))

    def _push(self, piece: Piece) -> None:
        self._waiting.append(piece)
        if self._arrived is not None:
            self._arrived.append(piece)
        self._length += piece.length
        self._counted += piece.counted

    def _budget(self, step: int) -> int:
        settings = self.settings
        assert isinstance(settings, TokenBudget)
        return settings.tokens if settings.warmup is None else settings.warmup.budget(step, settings.tokens)

    def is_ready(self, step: int) -> bool:
        """Whether enough waits for a full micro-batch of this step."""
        settings = self.settings
        if isinstance(settings, SampleCount):
            return len(self._waiting) >= settings.samples
        return len(self._waiting) >= settings.min_buffered and (
            self._counted >= self._budget(step) or self._length >= settings.capacity
        )

    def take(self, step: int) -> list[Piece]:
        """The next micro-batch, of what waits; at least one piece must. Ready or not: the end of the data drains it."""
        settings = self.settings
        if isinstance(settings, SampleCount):
            taken, self._waiting = self._waiting[: settings.samples], self._waiting[settings.samples :]
        elif settings.fit is Fit.EXACT:
            taken, self._waiting = _exact_fit(self._waiting, self._budget(step))
        else:
            taken, self._waiting = _first_fit(self._waiting, self._budget(step), settings.capacity)
        length = sum(piece.length for piece in taken)
        self._length -= length
        self._counted -= sum(piece.counted for piece in taken)
        self._ledger.samples_packed += sum(piece.samples for piece in taken)
        self._ledger.tokens_packed += length
        self._ledger.micro_batches += 1
        return taken

    def put_back(self) -> None:
        """Let what was taken since ``begin_step`` wait again, in order of arrival, as if nobody had taken it."""
        arrived, counts = self._arrived, self._ledger
        assert arrived is not None
        counts.samples_packed -= sum(piece.samples for piece in arrived) - sum(piece.samples for piece in self._waiting)
        counts.tokens_packed -= sum(piece.length for piece in arrived) - self._length
        counts.micro_batches = self._composed_before
        self.restore(arrived, counts)

    def drop(self, micro_batch: Sequence[Piece]) -> None:
        """Account for a micro-batch that was taken and is not served after all."""
        samples, tokens = sum(piece.samples for piece in micro_batch), sum(piece.length for piece in micro_batch)
        self._ledger.samples_packed -= samples
        self._ledger.tokens_packed -= tokens
        self._ledger.samples_dropped += samples
        self._ledger.tokens_dropped += tokens
        self._ledger.micro_batches -= 1


def compose(
    lengths: Iterable[int],
    settings: TokenBudget | SampleCount,
    *,
    loss_tokens: Iterable[int] | None = None,
    micro_batches_per_step: int = 1,
) -> Iterator[list[Piece]]:
    """All micro-batches of samples in their order, from lengths alone.

    Pure: no I/O, no randomness.

    Args:
        lengths: tokens of each sample.
        settings: ``TokenBudget`` or ``SampleCount``.
        loss_tokens: targets of each sample; needed where the budget counts them.
        micro_batches_per_step: over all ranks; for the warm-up.

    >>> settings = TokenBudget(32, min_buffered=1)
    >>> [[piece.length for piece in batch] for batch in compose(range(1, 17), settings)]
    [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10], [11, 12], [13, 14], [15, 16]]
    """
    if loss_tokens is None and isinstance(settings, TokenBudget) and settings.count is Count.LOSS_TOKENS:
        raise SettingsError("count='loss_tokens' needs the targets of each sample: give loss_tokens")
    composer = Composer(settings)
    composed = 0
    pairs = ((length, length) for length in lengths) if loss_tokens is None else zip(lengths, loss_tokens, strict=True)
    for key, (length, counted) in enumerate(pairs):
        composer.add(key, length, counted)
        while composer.is_ready(composed // micro_batches_per_step):
            yield composer.take(composed // micro_batches_per_step)
            composed += 1
    while len(composer):
        yield composer.take(composed // micro_batches_per_step)
        composed += 1


def _first_fit(waiting: list[Piece], budget: int, capacity: int) -> tuple[list[Piece], list[Piece]]:
    """The oldest piece, and in order whatever fits beside it; and what stays."""
    room, space = budget - waiting[0].counted, capacity - waiting[0].length
    taken, left = [waiting[0]], []
    at = 1
    while at < len(waiting) and room > 0 and space > 0:
        piece = waiting[at]
        at += 1
        _, _, length, counted, _ = piece
        if counted <= room and length <= space:
            taken.append(piece)
            room -= counted
            space -= length
        else:
            left.append(piece)
    return taken, left + waiting[at:]


def _exact_fit(waiting: list[Piece], budget: int) -> tuple[list[Piece], list[Piece]]:
    """The oldest piece, and of as few of the next as possible those that fill the budget best; and what stays.

    Bit ``s`` of ``reachable`` says that some of the pieces so far have ``s`` tokens together::

        room 7, pieces 3 5 6 4     reachable sums 0 · 0 3 · 0 3 5 · 0 3 5 6 · 0 3 4 5 6 7      taken: 3 and 4
    """
    room = budget - waiting[0].length
    if room <= 0:
        return waiting[:1], waiting[1:]
    below = (1 << (room + 1)) - 1
    reachable, before = 1, []
    for at in range(1, len(waiting)):
        before.append(reachable)
        reachable |= (reachable << waiting[at].length) & below
        if reachable >> room:
            break
    total = reachable.bit_length() - 1
    chosen = []
    for at in range(len(before), 0, -1):
        if not before[at - 1] >> total & 1:
            chosen.append(at)
            total -= waiting[at].length
    chosen.reverse()
    taken, left, past = [waiting[0]], [], 1
    for at in chosen:
        taken.append(waiting[at])
        left += waiting[past:at]
        past = at + 1
    return taken, left + waiting[past:]
