"""Composition of micro-batches from lengths, while samples still arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, NamedTuple

from brimful.dynamic.token_budget import Fit, SampleCount, TokenBudget
from brimful.errors import OversizedSampleError
from brimful.plan import Overflow
from brimful.plan.ledger import assert_all


class SampleSegment(NamedTuple):
    """A sample, or a part of one after the overflow policy. Also a whole pack from a stream."""

    key: int
    """Number of the sample in its source."""
    start: int
    """Index in the sample of the first token of the segment."""
    length: int
    """Tokens."""
    counted: int
    """Tokens counted against the budget; 0 is possible if the budget counts targets."""
    samples: int
    """Samples that end in the segment: 1; 0 for all but the last part of a split sample; several
    for a pack.
    """


@dataclass
class BatchLedger:
    """Ledger of samples and tokens.

    ``samples_in = samples_packed + samples_dropped + samples_carried + samples_rejected`` and
    ``tokens_in = tokens_packed + tokens_dropped + tokens_carried + tokens_truncated``; checked at
    every access.
    """

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
        """Return the ledger itself; assert that its sums are consistent."""
        assert_all(
            "samples",
            self.samples_in,
            self.samples_packed,
            self.samples_dropped,
            self.samples_carried,
            self.samples_rejected,
        )
        assert_all(
            "tokens",
            self.tokens_in,
            self.tokens_packed,
            self.tokens_dropped,
            self.tokens_carried,
            self.tokens_truncated,
        )
        return self

    def as_dict(self) -> dict[str, int]:
        """Return the counts for JSON."""
        return asdict(self)


class ComposerMark(NamedTuple):
    """Snapshot of a composer between two steps, as references. It becomes JSON only when a state is
    requested.
    """

    segments: Sequence[SampleSegment]
    """Segments that are not in a micro-batch yet, in order of arrival."""
    ledger: BatchLedger
    plan: Any = None
    """Further state of a composer for JSON, in addition to the order of the segments; None if it
    has none.
    """


class MicroBatchComposer:
    """Composer that takes samples and returns micro-batches. It sees only lengths.

    ::

        budget 32, lengths 1 2 3 …      waiting                     leaves
        1 … 8 came in: 36 tokens        1 2 3 4 5 6 7 8             1 2 3 4 5 6 7     28
        9 10 11                         8 9 10 11                   8 9 10            27
        12 13                           11 12 13                    11 12             23

    The sample that has waited longest is always taken, so no sample waits forever; others join it
    while they fit into the remaining budget and capacity (``Fit``).

    Cost: the time of a micro-batch is proportional to the number of waiting samples, about
    ``min_buffered``, for any size of the data.

    Source: VeOmni's dynamic batching; the exact fit is a subset sum on the bits of one long integer
    (Bellman 1957).
    """

    def __init__(self, settings: TokenBudget | SampleCount) -> None:
        self.settings = settings
        self._waiting: list[SampleSegment] = []
        self._length = self._counted = 0  # sums over the waiting segments
        self._ledger = BatchLedger()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def waiting(self) -> Sequence[SampleSegment]:
        """Segments that are not in a micro-batch yet, in order of arrival."""
        return tuple(self._waiting)

    @property
    def ledger(self) -> BatchLedger:
        """Copy of the ledger; asserts that its sums are consistent."""
        num_carried = sum(segment.samples for segment in self.waiting)
        return replace(
            self._ledger, samples_carried=num_carried, tokens_carried=self._length
        ).check()

    def mark(self) -> ComposerMark:
        """Return a snapshot for ``go_to``."""
        return ComposerMark(self.waiting, self.ledger)

    def go_to(self, mark: ComposerMark) -> None:
        """Go back to a snapshot of this composer, or of another composer with the same settings."""
        self._waiting = list(mark.segments)
        self._count_waiting(mark)

    def _count_waiting(self, mark: ComposerMark) -> None:
        self._length, self._counted, _ = sums(mark.segments)
        self._ledger = replace(mark.ledger)

    def reject(self) -> None:
        """Count a sample that could not be read."""
        self._ledger.samples_in += 1
        self._ledger.samples_rejected += 1

    def add(self, key: int, length: int, budget_tokens: int, *, samples: int = 1) -> None:
        """Add one sample.

        Args:
            key: number of the sample.
            length: tokens.
            budget_tokens: tokens counted against the budget: ``length``, or the number of targets.
            samples: more than 1 for a pack, which is never cut.

        Raises:
            OversizedSampleError: the sample is longer than the capacity, and the policy is
                ``error`` or cannot cut it.
        """
        ledger, capacity, policy = self._ledger, self.settings.capacity, self.settings.overflow
        is_oversized = capacity is not None and length > capacity
        # Refuse before anything is counted: a caller that continues finds the ledger unchanged.
        if (
            is_oversized
            and policy is not Overflow.DROP
            and (policy is Overflow.ERROR or samples > 1)
        ):
            title = f"sample {key}" if samples == 1 else f"the pack of {samples} samples at {key}"
            choices = "drop, truncate, truncate_left or split" if samples == 1 else "drop"
            raise OversizedSampleError(
                f"{title} has {length:,} tokens and a micro-batch holds at most {capacity:,}. "
                f"Choose overflow {choices}, or raise capacity"
            )
        ledger.samples_in += samples
        ledger.tokens_in += length
        if capacity is None or not is_oversized:
            self._push(SampleSegment(key, 0, length, budget_tokens, samples))
        elif policy is Overflow.DROP:
            ledger.samples_dropped += samples
            ledger.tokens_dropped += length
        elif policy is Overflow.SPLIT:
            # The sample is counted as packed once, with its last part.
            for start in range(0, length, capacity):
                size = min(capacity, length - start)
                self._push(
                    SampleSegment(
                        key, start, size, min(budget_tokens, size), int(start + size == length)
                    )
                )
        else:
            ledger.samples_truncated += 1
            ledger.tokens_truncated += length - capacity
            start = length - capacity if policy is Overflow.TRUNCATE_LEFT else 0
            self._push(SampleSegment(key, start, capacity, min(budget_tokens, capacity), 1))

    def _push(self, segment: SampleSegment) -> None:
        self._waiting.append(segment)
        self._count_arrived(segment)

    def _count_arrived(self, segment: SampleSegment) -> None:
        """Count a segment among the waiting ones."""
        self._length += segment.length
        self._counted += segment.counted

    def _budget(self, step: int) -> int:
        settings = self.settings
        assert isinstance(settings, TokenBudget)
        return (
            settings.tokens
            if settings.warmup is None
            else settings.warmup.budget(step, settings.tokens)
        )

    def is_ready(self, step: int) -> bool:
        """Return true if enough samples wait for a full micro-batch of this step."""
        settings = self.settings
        if isinstance(settings, SampleCount):
            return len(self._waiting) >= settings.samples
        return len(self._waiting) >= settings.min_buffered and (
            self._counted >= self._budget(step) or self._length >= settings.capacity
        )

    def take(self, step: int) -> list[SampleSegment]:
        """Remove the next micro-batch from the waiting segments and return it.

        At least one segment must wait. It may be called before ``is_ready``, to use up the last
        samples of an epoch.
        """
        settings = self.settings
        if isinstance(settings, SampleCount):
            batch, self._waiting = (
                self._waiting[: settings.samples],
                self._waiting[settings.samples :],
            )
        elif settings.fit is Fit.EXACT:
            batch, self._waiting = _exact_fit(self._waiting, self._budget(step))
        else:
            batch, self._waiting = _first_fit(self._waiting, self._budget(step), settings.capacity)
        self._count_taken(batch)
        return batch

    def _count_taken(self, batch: Sequence[SampleSegment]) -> None:
        """Count a micro-batch as packed and not waiting."""
        length, budget_tokens, samples = sums(batch)
        self._length -= length
        self._counted -= budget_tokens
        self._ledger.samples_packed += samples
        self._ledger.tokens_packed += length
        self._ledger.micro_batches += 1

    def next_batch(
        self, step: int, pull: Callable[[MicroBatchComposer], bool]
    ) -> list[SampleSegment] | None:
        """Pull samples until a micro-batch is ready, and return it; at the end return the remaining
        samples, then None.

        Args:
            step: step of the micro-batch, for the warm-up.
            pull: adds one more sample to this composer; false at the end.
        """
        while not self.is_ready(step) and pull(self):
            pass
        return self.take(step) if len(self) else None

    def drop(self, batch: Sequence[SampleSegment]) -> None:
        """Count a taken micro-batch as dropped because it is not served."""
        length, _, samples = sums(batch)
        self._ledger.samples_packed -= samples
        self._ledger.tokens_packed -= length
        self._ledger.micro_batches -= 1
        self._ledger.samples_dropped += samples
        self._ledger.tokens_dropped += length


def sums(segments: Iterable[SampleSegment]) -> tuple[int, int, int]:
    """Return the tokens, the tokens counted against the budget, and the samples of segments."""
    length = budget_tokens = samples = 0
    for segment in segments:
        length += segment.length
        budget_tokens += segment.counted
        samples += segment.samples
    return length, budget_tokens, samples


def _first_fit(
    segments: list[SampleSegment], budget: int, capacity: int
) -> tuple[list[SampleSegment], list[SampleSegment]]:
    """Return the oldest segment with all later segments that still fit, and the remaining
    segments.
    """
    budget_room, token_room = budget - segments[0].counted, capacity - segments[0].length
    batch, remaining = segments[:1], []
    i = 1
    # Stop at a full micro-batch: the later segments stay as one slice and are not examined.
    while i < len(segments) and budget_room > 0 and token_room > 0:
        segment = segments[i]
        i += 1
        _, _, length, budget_tokens, _ = segment
        if budget_tokens <= budget_room and length <= token_room:
            batch.append(segment)
            budget_room -= budget_tokens
            token_room -= length
        else:
            remaining.append(segment)
    return batch, remaining + segments[i:]


def _exact_fit(
    segments: list[SampleSegment], budget: int
) -> tuple[list[SampleSegment], list[SampleSegment]]:
    """Return the oldest segment with the segments that fill the budget best, and the remaining
    segments.

    Candidates are the shortest run after the oldest segment that can fill the budget exactly,
    otherwise all segments. Bit ``s`` of ``reachable`` is set if some of the candidates so far have
    ``s`` tokens together::

        room 7, segments 3 5 6 4     reachable sums 0 · 0 3 · 0 3 5 · 0 3 5 6 · 0 3 4 5 6 7      chosen: 3 and 4
    """
    room = budget - segments[0].length
    if room <= 0:
        return segments[:1], segments[1:]
    mask = (1 << (room + 1)) - 1
    reachable, history = 1, []  # history[i]: the sums of segments 1 … i
    for segment in segments[1:]:
        history.append(reachable)
        reachable |= (reachable << segment.length) & mask
        if reachable >> room:
            break
    total = reachable.bit_length() - 1
    # Walk back from the best sum: a segment is needed if the earlier segments cannot reach the sum.
    stop = len(history) + 1
    indices = {0}
    for i in range(stop - 1, 0, -1):
        if not history[i - 1] >> total & 1:
            indices.add(i)
            total -= segments[i].length
    remaining = [segments[i] for i in range(stop) if i not in indices]
    return [segments[i] for i in sorted(indices)], remaining + segments[stop:]
