"""Observation of a stream: its log, acknowledgements and heartbeats, read again and again at little cost."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

from brimful.blobs import open_blob_store
from brimful.materialize.registered import Producers, Registration
from brimful.report.analysis.stream_status import (
    ProducerStatus,
    RankStatus,
    Silence,
    StreamStatus,
    TrainingStatus,
    mean_of,
    sum_of,
)
from brimful.serve.acks import Acks, expired_below
from brimful.serve.follow import FollowedLog
from brimful.serve.stream_order import Assignment, LaneOrder, PackOrder, StreamOrder
from brimful.shards import Beat, ShardRecord, producer_key, read_beats

_RATE_SECONDS = 300.0
"""Seconds over which the growth of the log is taken, where no producer says how fast it is."""

_MISSED_BEATS = 3
"""Heartbeats that a process may miss before it is called silent."""


class StreamWatch:
    """Looks at a stream; each look reads what is new.

    Counts of what was produced come from the log, and those of what is durable from acknowledgements: they are exact at
    every moment, whoever is killed. Rates, steps and waits of ranks come from heartbeats, and are as old as these. Clocks of
    other machines count until a heartbeat was seen to change; from then on that of this process alone.

    Args:
        directory: path or URL of the stream.

    >>> import tempfile
    >>> from brimful.testing.toys import toy_stream
    >>> status = StreamWatch(toy_stream(tempfile.mkdtemp(), [2, 1])).look()
    >>> status.shards, status.packs, status.tokens, status.fill_ratio, status.is_ended
    (2, 3, 12, 1.0, True)
    """

    def __init__(self, directory: str | os.PathLike[str]) -> None:
        self._store = open_blob_store(directory)
        self._log = FollowedLog(self._store)
        self._capacity = int(self._log.header["identity"]["capacity"])
        self._producers = Producers(self._store)
        self._registrations: list[Registration] = []
        self._closed: set[int] = set()
        self._last_records: dict[str, ShardRecord] = {}
        self._cum_bytes = [0]  # of the shards below each number
        self._history: deque[tuple[float, int, int]] = deque()
        self._grown_at: float | None = None
        self._orders: dict[tuple[str, int], StreamOrder] = {}
        self._beats: dict[str, Beat] = {}
        self._beats_at, self._beat_interval = -float("inf"), 0.0
        self._changes: dict[str, tuple[tuple[str, int], float | None]] = {}
        self._acks: dict[str, tuple[int, dict[str, Any], dict[str, Any]]] = {}

    def look(self) -> StreamStatus:
        """Read what is new, and return the status.

        Raises:
            CorruptFileError: a record of the log is damaged.
        """
        now = time.monotonic()
        self._log.look()
        self._read_records(now)
        self._read_beats(now)
        producers = self._producer_statuses(now)
        shards = self._log.shards
        num_packs, num_tokens = (shards[-1].cum_packs, shards[-1].cum_tokens) if shards else (0, 0)
        first_present = min(expired_below(self._store), len(shards))
        growth = self._growth(now, producers)
        return StreamStatus(
            url=self._store.url,
            capacity=self._capacity,
            shards=len(shards),
            packs=num_packs,
            tokens=num_tokens,
            bytes=self._cum_bytes[-1],
            removed_shards=first_present,
            kept_bytes=self._cum_bytes[-1] - self._cum_bytes[first_present],
            is_ended=self._log.end is not None,
            seconds_without_shard=None if self._grown_at is None else now - self._grown_at,
            packs_per_second=growth[0],
            tokens_per_second=growth[1],
            producers=producers,
            trainings=self._trainings(now),
        )

    # Production: from the log.

    def _read_records(self, now: float) -> None:
        """Take in the records that came since the last look."""
        shards = self._log.shards
        # What was there when the watch began appeared at a time that nobody knows.
        num_known = len(self._cum_bytes) - 1
        if self._history and len(shards) > num_known:
            self._grown_at = now
        for record in shards[num_known:]:
            self._cum_bytes.append(self._cum_bytes[-1] + record.bytes)
            if isinstance(record.state, dict) and "producer" in record.state:
                self._last_records[record.state["producer"]] = record
        packs, tokens = (shards[-1].cum_packs, shards[-1].cum_tokens) if shards else (0, 0)
        self._history.append((now, packs, tokens))
        while len(self._history) > 2 and self._history[1][0] <= now - _RATE_SECONDS:
            self._history.popleft()

    def _growth(self, now: float, producers: Sequence[ProducerStatus]) -> tuple[float | None, float | None]:
        """Return packs and tokens a second: as producers say, or as the log was seen to grow."""
        if self._log.end is not None:
            return 0.0, 0.0
        if any(producer.silence is not None for producer in producers):
            return (
                sum_of([producer.packs_per_second for producer in producers]),
                sum_of([producer.tokens_per_second for producer in producers]),
            )
        begin, num_packs, num_tokens = self._history[0]
        if now <= begin:
            return None, None
        _, packs, tokens = self._history[-1]
        return (packs - num_packs) / (now - begin), (tokens - num_tokens) / (now - begin)

    def _producer_statuses(self, now: float) -> tuple[ProducerStatus, ...]:
        self._registrations += self._producers.since(len(self._registrations))
        for producer in self._registrations:
            # Closed is closed for ever: what is known is not asked again.
            if producer.number not in self._closed and self._producers.is_closed(producer):
                self._closed.add(producer.number)
        return tuple(self._producer_status(producer, now) for producer in self._registrations)

    def _producer_status(self, producer: Registration, now: float) -> ProducerStatus:
        record = self._last_records.get(producer.name)
        counts = dict(record.state["counts"]) if record is not None else {}
        is_closed = producer.number in self._closed
        beat = self._beats.get(producer_key(producer.number))
        silence = None if beat is None else self._silence(producer_key(producer.number), beat, now)
        works = beat is not None and silence is not None and not (silence.is_silent or silence.is_over or is_closed)
        rates: list[float | None] = [None, None] if silence is None else [0.0, 0.0]
        if works:
            assert beat is not None
            rates = [beat.rate("packs"), beat.rate("tokens")]
        return ProducerStatus(
            name=producer.name,
            is_closed=is_closed,
            **{name: int(counts.get(name, 0)) for name in ("samples_read", "packs", "tokens", "shards")},
            dropped={name: int(counts[name]) for name in ("malformed", "without_target") if counts.get(name)},
            waiting_for=str(beat.facts.get("waiting_for", "")) if works and beat is not None else "",
            packs_per_second=rates[0],
            tokens_per_second=rates[1],
            silence=None if is_closed else silence,
        )

    # Heartbeats.

    def _read_beats(self, now: float) -> None:
        """Read all heartbeats, not more often than they change."""
        if now - self._beats_at < self._beat_interval / 2:
            return
        self._beats, self._beats_at = read_beats(self._store), now
        self._beat_interval = min((beat.interval for beat in self._beats.values()), default=0.0)
        for key, beat in self._beats.items():
            name = beat.writer, beat.number
            known_name, _ = self._changes.get(key, (None, None))
            if known_name is None:
                self._changes[key] = name, None
            elif known_name != name:
                self._changes[key] = name, now
        self._changes = {key: self._changes[key] for key in self._beats}

    def _silence(self, key: str, beat: Beat, now: float) -> Silence:
        changed_at = self._changes[key][1]
        if changed_at is None:
            seconds = max(0.0, time.time() - beat.time)
        else:
            seconds = now - changed_at
        return Silence(seconds, not beat.is_over and seconds > _MISSED_BEATS * beat.interval, beat.is_over)

    # Trainings: from acknowledgements and heartbeats.

    def _trainings(self, now: float) -> tuple[TrainingStatus, ...]:
        beats: dict[str, list[tuple[str, Beat]]] = {}
        for key, beat in self._beats.items():
            if "group" in beat.facts:
                beats.setdefault(beat.facts["group"], []).append((key, beat))
        groups = sorted({*beats, *self._store.folders("acks")})
        return tuple(self._training(group, beats.get(group, []), now) for group in groups)

    def _training(self, group: str, beats: Sequence[tuple[str, Beat]], now: float) -> TrainingStatus:
        ack, checkpoint = self._last_ack(group)
        lanes = steps_there_are = None
        ranks: list[RankStatus] = []
        missing_ranks: tuple[int, ...] = ()
        if beats:
            # Of ranks that changed, those that were heard last say how many there are.
            last = min(beats, key=lambda item: self._silence(item[0], item[1], now).seconds)[1].facts
            world_size, lanes = int(last["dp_world_size"]), int(last["lanes"])
            steps_there_are = self._num_steps(last)
            of_ranks: dict[int, list[tuple[str, Beat]]] = {}
            for key, beat in beats:
                if beat.facts["dp_rank"] < world_size and beat.facts["dp_world_size"] == world_size:
                    of_ranks.setdefault(int(beat.facts["dp_rank"]), []).append((key, beat))
            ranks = [self._rank(of_ranks[rank], steps_there_are, now) for rank in sorted(of_ranks)]
            missing_ranks = tuple(rank for rank in range(world_size) if rank not in of_ranks)
        acked_packs = None if ack is None else int(ack["packs_delivered"])
        acked_lanes = lanes if ack is None else ack.get("lanes", lanes)
        return TrainingStatus(
            group=group,
            ranks=tuple(ranks),
            missing_ranks=missing_ranks,
            steps_there_are=steps_there_are,
            packs_per_step=lanes,
            is_ended=self._log.end is not None,
            acked_packs=acked_packs,
            acked_step=None if acked_packs is None or not acked_lanes else acked_packs // int(acked_lanes),
            checkpoint=checkpoint,
            first_needed_shard=0 if ack is None else int(ack["frontier"]),
        )

    def _last_ack(self, group: str) -> tuple[dict[str, Any] | None, str]:
        """Return the newest acknowledgement of a group and the name of its checkpoint."""
        acks = Acks(self._store, group)
        positions = acks.positions()
        if not positions:
            return None, ""
        known_ack = self._acks.get(group)
        if known_ack is None or known_ack[0] != positions[-1]:
            known_ack = self._acks[group] = positions[-1], *acks.read_with_notes(positions[-1])
        return known_ack[1], str(known_ack[2].get("checkpoint", ""))

    def _num_steps(self, facts: dict[str, Any]) -> int:
        """Return the steps that the stream has for the ranks that a heartbeat tells about."""
        assignment, lanes = Assignment(facts["assign"]), int(facts["lanes"])
        order = self._orders.get((assignment.value, lanes))
        if order is None:
            orders: dict[Assignment, type[StreamOrder]] = {Assignment.LANE: LaneOrder, Assignment.PACK: PackOrder}
            order = self._orders[assignment.value, lanes] = orders[assignment](self._log.shards, lanes)
        # While it grows, a step that lacks a pack is not there yet; at the end it is, unless the tail is dropped.
        return order.num_steps(is_full=self._log.end is None or facts["tail"] == "drop")

    def _rank(self, beats: Sequence[tuple[str, Beat]], steps_there_are: int, now: float) -> RankStatus:
        workers = [beat for _, beat in beats]
        facts = max(workers, key=lambda beat: (beat.facts["epoch"], beat.facts["position"])).facts
        silences = [self._silence(key, beat, now) for key, beat in beats]
        silence = Silence(
            max(one.seconds for one in silences),
            any(one.is_silent for one in silences),
            all(one.is_over for one in silences),
        )
        # Who says nothing any more was that fast once.
        talkers = [] if silence.is_silent or silence.is_over else workers
        lanes, world_size = int(facts["lanes"]), int(facts["dp_world_size"])
        places = sum_of([beat.rate("places") for beat in talkers])
        step = int(facts["position"]) // lanes
        return RankStatus(
            dp_rank=int(facts["dp_rank"]),
            dp_world_size=world_size,
            num_workers=int(facts["num_workers"]),
            epoch=int(facts["epoch"]),
            step=step,
            steps_behind=max(0, steps_there_are - step),
            **{name: int(sum(beat.counts[name] for beat in workers)) for name in ("packs", "tokens", "skipped")},
            steps_per_second=None if places is None else places / (lanes // world_size),
            packs_per_second=sum_of([beat.rate("packs") for beat in talkers]),
            tokens_per_second=sum_of([beat.rate("tokens") for beat in talkers]),
            wait_share=mean_of([beat.rate("waited") for beat in talkers]),
            waiting_for=next((text for beat in talkers if (text := str(beat.facts["waiting_for"]))), ""),
            silence=silence,
        )
