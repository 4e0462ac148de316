"""Samples before their commit: the planner's window, the packs that are ready for a shard, and
their account.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from brimful.base.attachment import CONTAINER_BYTES
from brimful.base.wording import counted, percent
from brimful.encode.encoded import EncodedSample
from brimful.plan import Overflow
from brimful.store.shards import Pack
from brimful.stream.producer.carry_over import WaitingSamples
from brimful.stream.producer.settings import ProducerSettings

_COUNTS = ("samples_read", "malformed", "without_target", "packs", "tokens", "shards")


@dataclass(frozen=True)
class ProducerStatistics:
    """Account of one producer: read = packed + waiting + dropped, by sample.

    Attributes:
        samples_read, samples_packed, samples_waiting: taken from the source; in committed shards;
            not yet in a shard.
        dropped: samples that were left out, by reason.
        packs, tokens, shards: committed.
        capacity: maximum tokens of a pack.
    """

    samples_read: int
    samples_packed: int
    samples_waiting: int
    dropped: Mapping[str, int]
    packs: int
    tokens: int
    shards: int
    capacity: int

    @property
    def fill_ratio(self) -> float:
        """Share of the capacity of the committed packs that is filled."""
        return self.tokens / (self.packs * self.capacity) if self.packs else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the account for JSON."""
        return {**asdict(self), "fill_ratio": self.fill_ratio}

    def __str__(self) -> str:
        num_dropped = "".join(
            f", {count:,} {reason}" for reason, count in self.dropped.items() if count
        )
        return (
            f"{counted(self.samples_read, 'sample')} read, {self.samples_packed:,} packed, "
            f"{self.samples_waiting:,} waiting{num_dropped}; {counted(self.packs, 'pack')} in "
            f"{counted(self.shards, 'shard')}, {self.tokens:,} tokens, {percent(self.fill_ratio)} "
            "full"
        )


class PackingWindow:
    """Everything that a producer has taken and not committed, and its counts.

    Attributes:
        ready: packs that only wait for their shard.
        counts: sums since the producer began, as records hold them.
    """

    def __init__(self, settings: ProducerSettings) -> None:
        self._settings, self._planner = settings, settings.planner()
        self._waiting = WaitingSamples(splits=settings.overflow is Overflow.SPLIT)
        self.ready: list[Pack] = []
        self.counts = dict.fromkeys(_COUNTS, 0)

    @property
    def is_empty(self) -> bool:
        """True if nothing waits."""
        return not self.ready and not len(self._waiting)

    def add(self, samples: Mapping[int, EncodedSample], counts: Mapping[str, int]) -> None:
        """Add samples to the planner's window, and collect full packs; ``counts`` are those of
        ``Intake.take``.
        """
        lengths = np.array([len(sample) for sample in samples.values()], dtype=np.int32)
        packs = self._planner.add(np.array(list(samples), dtype=np.int64), lengths)
        for sample_id, sample in samples.items():
            # A sample that is too long and dropped never leaves the planner.
            if (
                len(sample) <= self._settings.capacity
                or self._settings.overflow is not Overflow.DROP
            ):
                self._waiting.add(
                    sample_id, sample.input_ids, sample.loss_mask, media=sample.attachments
                )
        # Replaced, not changed: the state in the last record holds the counts that it was made with.
        self.counts = {name: count + counts.get(name, 0) for name, count in self.counts.items()}
        self.ready += self._waiting.take(packs)

    def finish(self, min_packs: int = 0) -> None:
        """Empty the window into packs, full or not: at least ``min_packs`` in all, if the samples
        suffice.
        """
        packs = self._planner.finish()
        num_missing = min_packs - len(self.ready) - len(packs)
        if num_missing > 0:
            cuts = np.setdiff1d(np.arange(packs.offsets[-1]), packs.offsets)
            chosen_cuts = cuts[
                np.unique(
                    np.linspace(0, len(cuts) - 1, min(num_missing, len(cuts))).astype(np.int64)
                )
            ]
            packs = replace(packs, offsets=np.union1d(packs.offsets, chosen_cuts))
        self.ready += self._waiting.take(packs)

    def packs_of_shard(self) -> int:
        """Return the packs of the next shard, by their number or the bytes of their media; 0 if it
        is not full yet.
        """
        # The bytes depend only on the samples, so a shard is the same after a stop.
        num_bytes = 0
        for num_packs, pack in enumerate(self.ready[: self._settings.shard_packs], 1):
            num_bytes += sum(item.medium.num_bytes for item in pack.attachments)
            if num_packs == self._settings.shard_packs or num_bytes >= CONTAINER_BYTES:
                return num_packs
        return 0

    def counts_after(self, packs: Sequence[Pack]) -> dict[str, int]:
        """Return the counts after a shard of these packs."""
        new = {"packs": len(packs), "tokens": sum(map(len, packs)), "shards": 1}
        return {name: count + new.get(name, 0) for name, count in self.counts.items()}

    def drop_committed(self, num_packs: int, counts: dict[str, int]) -> None:
        """Forget the first ready packs, which are in a shard now."""
        self.ready, self.counts = self.ready[num_packs:], counts

    def segments(self) -> list[Pack]:
        """Return the waiting segments, each as a separate row, in the order of the window."""
        window = self._planner.state_dict()
        starts = window["starts"] or [0] * len(window["sample_ids"])
        return [
            self._waiting.pack([sample_id], [start], [length])
            for sample_id, start, length in zip(
                window["sample_ids"], starts, window["lengths"], strict=True
            )
        ]

    def planner_state(self) -> dict[str, Any]:
        """Return the state of the planner without its segments: every process reads the records."""
        window = self._planner.state_dict()
        return {
            name: value
            for name, value in window.items()
            if name not in ("sample_ids", "starts", "lengths")
        }

    def load(
        self,
        counts: Mapping[str, int],
        planner_state: Mapping[str, Any],
        ready: list[Pack],
        segments: Sequence[Pack],
    ) -> None:
        """Resume from the state in a record, with its carry-over."""
        self.ready, self.counts = ready, dict(counts)
        starts = [int(segment.starts[0]) for segment in segments]
        self._planner.load_state_dict(
            {
                **planner_state,
                "sample_ids": [int(segment.sample_ids[0]) for segment in segments],
                "lengths": list(map(len, segments)),
                "starts": starts if any(starts) else None,
            }
        )
        for segment, start in zip(segments, starts, strict=True):
            media = tuple(replace(item, start=start + item.start) for item in segment.attachments)
            self._waiting.add(
                int(segment.sample_ids[0]), segment.input_ids, segment.loss_mask, start, media
            )

    @property
    def statistics(self) -> ProducerStatistics:
        """Account so far."""
        ledger = self._planner.ledger
        # A split sample waits while one of its segments waits.
        waiting_items = set(self._waiting).union(*(pack.sample_ids.tolist() for pack in self.ready))
        num_dropped = {
            "malformed": self.counts["malformed"],
            "without_target": self.counts["without_target"],
            "oversized": ledger.samples_dropped,
        }
        num_read = self.counts["samples_read"]
        return ProducerStatistics(
            samples_read=num_read,
            samples_packed=num_read - len(waiting_items) - sum(num_dropped.values()),
            samples_waiting=len(waiting_items),
            dropped=num_dropped,
            **{name: self.counts[name] for name in ("packs", "tokens", "shards")},
            capacity=self._settings.capacity,
        )
