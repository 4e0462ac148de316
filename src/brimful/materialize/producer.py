"""Packs while the data still arrives: a producer appends shards to a stream, each sample exactly once.

A record of the log commits three things at once: a shard, the position in the source behind it, and what was taken from
the source and is in no shard yet. So whoever reads the last record knows how to go on: the same producer after a kill,
or another process that does the same work at the same time. Of two that write the next record one succeeds; the other
throws its shard away and goes on from that record.
"""

from __future__ import annotations

import logging
import os
import socket
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import count, islice
from typing import Any

import numpy as np

from brimful.arguments import CAPACITY_NAMES, understands
from brimful.blobs import crash_points, open_blob_store
from brimful.checks import choice_of, is_number, path_of, setting_number
from brimful.encode.choose import Mode, encoder_for
from brimful.encode.encoded import EncodedSample
from brimful.encode.encoded_samples import compare_share
from brimful.encode.encoder import Encoder
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import (
    BadSampleError,
    CorruptFileError,
    NoTargetError,
    SettingsError,
    SourceError,
    StateError,
    StoreMismatchError,
)
from brimful.materialize.back_pressure import BackPressure, Clock
from brimful.materialize.carry_over import (
    ReadyPack,
    WaitingSamples,
    load_carry_over,
    save_carry_over,
    write_packs_to,
)
from brimful.materialize.registered import Producers, Registration
from brimful.materialize.write import SHARD_BYTES
from brimful.measure.job import OnBadSample
from brimful.messages import counted, percent, setting
from brimful.plan import NoTarget, Overflow
from brimful.plan.stream.lookahead import Lookahead
from brimful.shards import EndRecord, ShardRecord, StreamLog, beating, producer_key, shard_key
from brimful.sources.feed import Feed
from brimful.sources.open_feed import open_feed
from brimful.sources.sample import Sample
from brimful.typing import LossMask

_VERSION = 1
"""Version of the state in records; others are refused."""

_BATCH = 256
"""Samples that are taken and encoded together."""

_FIRST_WAIT, _MAX_WAIT = 0.02, 1.0
"""Seconds between two looks at a source from which nothing comes."""

_LATE_ATTEMPTS = 12
"""Looks for a file that a record names before it is taken for lost: half a minute, as network mounts may need."""

_KEPT_CARRY_OVERS = 2
"""Records whose carry-over stays: another process may be reading the last but one."""

_ERRORS_SHOWN = 10
"""Samples that were left out and are logged; the rest are counted."""


@dataclass(frozen=True)
class ProducerStatistics:
    """Account of one producer: read = packed + waiting + dropped, by sample.

    Attributes:
        samples_read, samples_packed, samples_waiting: taken from the source; in committed shards; not yet.
        dropped: samples that were left out, by reason.
        packs, tokens, shards: committed.
        capacity: most tokens of a pack.
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
        """Share of the committed packs that is tokens."""
        return self.tokens / (self.packs * self.capacity) if self.packs else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return the account for JSON."""
        return {**asdict(self), "fill_ratio": self.fill_ratio}

    def __str__(self) -> str:
        num_dropped = "".join(f", {number:,} {reason}" for reason, number in self.dropped.items() if number)
        return (
            f"{counted(self.samples_read, 'sample')} read, {self.samples_packed:,} packed, {self.samples_waiting:,} "
            f"waiting{num_dropped}; {counted(self.packs, 'pack')} in {counted(self.shards, 'shard')}, "
            f"{self.tokens:,} tokens, {percent(self.fill_ratio)} full"
        )


class PackingProducer:
    """Appends packs to a stream while samples arrive; stopped anywhere and started again, as if it had never stopped.

    Samples are packed in a window (``Lookahead``), and packs leave in shards of one size. What is in a shard depends on
    the order of the samples alone, unless ``max_age`` cuts it short. Several producers may feed one stream, each with a
    name and a source of its own; two processes of one name share one source and do its work twice, but commit it once.

    Args:
        source: a directory that fills, a file, ``-`` or an iterable (``open_feed``), or a ``Feed``.
        encoder: an encoder, a tokenizer, or the name or directory of one.
        directory: path or URL of the stream.
        capacity: most tokens of a pack.
        producer: name of this producer among those of the stream.
        lookahead: samples that the planner sees at once.
        max_wait: packs that a sample may wait for, as of ``Lookahead``; four times the window if None.
        algorithm, min_fill, overflow: as of ``Lookahead``.
        no_target: what becomes of samples without a target (``NoTarget``).
        on_bad_sample: ``error``, or ``skip``: malformed samples are counted and logged.
        packs_per_shard: packs of one shard; as many as 64 MiB hold if None.
        max_age: seconds without a new shard after which all samples leave, however full their packs are; None for never.
        lanes: groups of shards that readers divide among them: the packs of a global batch. Of the first producer.
        high_water: shards that may be ahead of training, which ``trainings`` names (``BackPressure``).
        trainings: names under which they acknowledge (``StreamLoader.ack``).
        min_free_bytes: bytes that stay free on the disk of the stream.
        encoder_options: arguments of ``encoder_for`` beside a tokenizer.
        notes: for people; kept in the header.
        format, fields, ignore, prompt, cache_dir: as of ``open_source``.
        clock: another time than that of the machine, for tests.
        on_shard: called with the statistics behind each shard that this process commits.

    Raises:
        SettingsError: settings that contradict each other, or an encoder of media.
        StoreMismatchError: the stream, or the producer of that name, was begun with other settings.

    >>> import tempfile
    >>> from brimful.serve import open_packs
    >>> from brimful.testing.toys import toy_chat_encoder
    >>> stream, rows = tempfile.mkdtemp(), [{"text": text} for text in ("aaaaaaa", "bbbb", "ccc", "dddddd")]
    >>> PackingProducer(rows, toy_chat_encoder(), stream, capacity=10).run(close=True)  # doctest: +ELLIPSIS
    ProducerStatistics(samples_read=4, samples_packed=4, ..., packs=2, tokens=20, shards=1, capacity=10)
    >>> [pack.sample_ids.tolist() for pack in open_packs(stream)]
    [[0, 2], [3, 1]]
    """

    @understands(capacity=CAPACITY_NAMES)
    def __init__(
        self,
        source: Any,
        encoder: Encoder | str | os.PathLike[str] | Any,
        directory: str | os.PathLike[str],
        *,
        capacity: int,
        producer: str = "producer",
        lookahead: int = 1024,
        max_wait: int | None = None,
        algorithm: str = "best_fit_decreasing",
        min_fill: float = 1.0,
        overflow: Overflow | str = Overflow.ERROR,
        no_target: NoTarget | str = NoTarget.ERROR,
        on_bad_sample: OnBadSample = "error",
        packs_per_shard: int | None = None,
        max_age: float | None = None,
        lanes: int = 1,
        high_water: int | None = None,
        trainings: Sequence[str] = (),
        min_free_bytes: int = 0,
        encoder_options: Mapping[str, Any] | None = None,
        notes: Mapping[str, Any] | None = None,
        format: str | None = None,
        fields: Mapping[str, str] | None = None,
        ignore: Sequence[str] = (),
        prompt: str | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        clock: Clock | None = None,
        on_shard: Callable[[ProducerStatistics], None] | None = None,
    ) -> None:
        self.directory = path_of("directory", directory, "the path of a stream")
        self.capacity = setting_number("capacity", capacity, minimum=1, maximum=2**31 - 1)
        if on_bad_sample not in ("error", "skip"):
            raise SettingsError(f"{setting('on_bad_sample')} {on_bad_sample!r} is unknown: use one of error, skip")
        if max_age is not None and not (is_number(max_age) and max_age > 0):
            raise SettingsError(f"{setting('max_age')} must be a number of seconds above 0 and is {max_age!r}")
        if packs_per_shard is None:
            packs_per_shard = max(1, SHARD_BYTES // (4 * self.capacity))
        self._per_shard = setting_number("packs_per_shard", packs_per_shard, minimum=1)
        self._lanes, self._max_age = setting_number("lanes", lanes, minimum=1), max_age
        setting_number("lookahead", lookahead, minimum=1)
        self._on_bad_sample, self._no_target = on_bad_sample, choice_of(NoTarget, no_target, argument="no_target")
        self._overflow = Overflow.named(overflow)
        self._window: dict[str, Any] = {
            "capacity": self.capacity,
            "size": lookahead,
            "max_wait": 4 * lookahead if max_wait is None else max_wait,
            "algorithm": algorithm,
            "min_fill": min_fill,
            "overflow": self._overflow.value,
        }
        self._planner = Lookahead(**self._window)  # refuses what does not fit together, before anything is read
        self._store = open_blob_store(directory)
        self._log, self._producers = StreamLog(self._store), Producers(self._store)
        self._clock, self._on_shard = clock or Clock(), on_shard
        self._pressure = BackPressure(
            self._store, high_water=high_water, trainings=trainings, min_free_bytes=min_free_bytes, clock=self._clock
        )
        self._given_encoder, self._encoder_options = encoder, dict(encoder_options or {})
        self._encoder: Encoder | None = None
        if isinstance(encoder, Encoder):
            self._encoder = _of_texts(encoder)
        self._feed: Feed = open_feed(
            source, format=format, fields=fields, ignore=ignore, prompt=prompt, cache_dir=cache_dir
        )
        self.name = producer
        self._notes = dict(notes or {})
        self._writer_id = f"{socket.gethostname()}-{os.getpid()}-{uuid.uuid4().hex[:8]}"
        self._registration: Registration | None = None
        self._records: list[ShardRecord] = []
        self._num_shown = 0
        self._is_stopped = self.is_finished = self._is_current = False
        self._clear()

    def _clear(self) -> None:
        """Forget what is not committed."""
        self._planner = Lookahead(**self._window)
        self._waiting = WaitingSamples(splits=self._overflow is Overflow.SPLIT)
        self._ready: list[ReadyPack] = []
        self._counts = dict.fromkeys(("samples_read", "malformed", "without_target", "packs", "tokens", "shards"), 0)
        self._oldest: float | None = None  # time at which the oldest sample came that is in no shard
        self._is_emptied = False  # everything that waits leaves, full or not
        self._is_closing = False

    @property
    def statistics(self) -> ProducerStatistics:
        """Account of this producer until now, with that of the processes before it."""
        ledger = self._planner.ledger
        # A sample that was split waits while one of its segments does.
        waiting_items = set(self._waiting).union(*(pack.sample_ids.tolist() for pack in self._ready))
        num_dropped = {
            "malformed": self._counts["malformed"],
            "without_target": self._counts["without_target"],
            "oversized": ledger.samples_dropped,
        }
        num_read = self._counts["samples_read"]
        return ProducerStatistics(
            samples_read=num_read,
            samples_packed=num_read - len(waiting_items) - sum(num_dropped.values()),
            samples_waiting=len(waiting_items),
            dropped=num_dropped,
            **{name: self._counts[name] for name in ("packs", "tokens", "shards")},
            capacity=self.capacity,
        )

    def run(self, *, close: bool = False) -> ProducerStatistics:
        """Follow the source until it ends, or until ``stop``; with ``close`` end the stream where the source ends.

        A directory has its end, when the stream is closed, where all files that are there are read. The stream ends once
        all its producers are closed. Without ``close`` samples that fill no shard stay where they are, and the same call
        goes on from there.

        Args:
            close: nothing will follow what is in the source by now.

        Raises:
            BadSampleError, NoTargetError, OversizedSampleError: by the policies; nothing that was committed is lost.
            StoreFullError: no space left; the same call goes on when there is some.
        """
        wait = _FIRST_WAIT
        with self._store.used(), beating(self._store, self._tell):
            while not (self._is_stopped or self.is_finished):
                if self.step(close=close):
                    wait = _FIRST_WAIT
                elif not self.is_finished:
                    self._clock.sleep(wait)
                    wait = min(2 * wait, _MAX_WAIT)
        return self.statistics

    def _tell(self) -> tuple[str, dict[str, Any], dict[str, float]] | None:
        """Return the key, the facts and the counts of a heartbeat, once this producer is registered."""
        if self._registration is None:
            return None
        facts = {"producer": self.name, "waiting_for": self._pressure.reason}
        return producer_key(self._registration.number), facts, dict(self._counts)

    def stop(self) -> None:
        """Let ``run`` return after the present step; any thread or signal handler may call this."""
        self._is_stopped = True

    def close(self) -> ProducerStatistics:
        """Read the source to its end, commit what waits, and end the stream if all its producers are closed."""
        self._is_stopped = False
        return self.run(close=True)

    def step(self, *, close: bool = False) -> bool:
        """Do one piece of the work: take samples, or commit one shard. Return false if there was nothing to do."""
        if self.is_finished:
            return False
        if self._registration is None and not self._begin(close=close):
            return False
        try:
            if not self._is_current:
                self._adopt()
            return not self.is_finished and self._advance(close=close)
        except BaseException:
            # What was taken is in no record: the next step begins behind the last one that is there.
            self._is_current = False
            raise

    def _advance(self, *, close: bool) -> bool:
        if self._pressure.is_on(len(self._records)):
            return False
        is_closing = close and self._is_closing
        if len(self._ready) >= self._per_shard and not is_closing:
            return self._commit(self._per_shard)
        time_now = self._clock.now()
        if self._max_age is not None and self._oldest is not None and time_now - self._oldest >= self._max_age:
            self._is_emptied = True
        if self._is_emptied and not is_closing:
            self._empty_window()
            if self._ready:
                return self._commit(min(self._per_shard, len(self._ready)))
            self._is_emptied, self._oldest = False, None
        if not is_closing:
            first_id = self._own.first_sample_id + self._counts["samples_read"]
            samples = self._feed.poll(_BATCH, first_id, is_last=close)
            if samples:
                self._oldest = time_now if self._oldest is None else self._oldest
                self._take(samples)
                return True
            if not (close and self._feed.is_ended):
                self.is_finished = self._feed.is_ended
                return False
        self._is_closing = True
        self._empty_window()
        if self._ready:
            # The tail is divided over the lanes that have no shard of this round yet, so that they end together.
            num_lanes = -len(self._records) % self._num_lanes or self._num_lanes
            return self._commit(min(self._per_shard, -(-len(self._ready) // num_lanes)))
        self._end()
        return False

    def _empty_window(self) -> None:
        self._ready += self._waiting.take(self._planner.finish())

    @property
    def _own(self) -> Registration:
        assert self._registration is not None
        return self._registration

    # Beginning: the header, the registration, and the state of the last record.

    def _begin(self, *, close: bool) -> bool:
        """Claim the stream and register, once it is known how samples are encoded; return false until then."""
        known_items = self._producers.named(self.name)
        if known_items is None and self._look() is not None:
            raise self._ended()
        if self._encoder is None:
            mode = self._mode(known_items, close=close)
            if mode is None:
                return False
            options = {**self._encoder_options, "mode": mode}
            # Only a mode that is yet to be found asks the source for its formats.
            source: Any = None
            given_value = None if self._given_encoder is None else Tokenizer.of(self._given_encoder)
            self._encoder = _of_texts(encoder_for(source, given_value, **options))
            settings: dict[str, Any] = {"mode": mode.value}
        else:
            settings = {"mode": known_items.settings.get("mode", "encoder") if known_items is not None else "encoder"}
        settings |= {
            **self._window,
            "packs_per_shard": self._per_shard,
            "no_target": self._no_target.value,
            "on_bad_sample": self._on_bad_sample,
        }
        identity = {
            "capacity": self.capacity,
            "source": "stream",
            "encoder": self._encoder.fingerprint,
            "train_on": self._encoder.label_settings.get("train_on"),
        }
        if not self._log.is_begun():
            tokenizer = getattr(self._encoder, "tokenizer", None)
            if tokenizer is not None:
                self._notes |= {"tokenizer": tokenizer.place, "tokenizer_fingerprint": tokenizer.fingerprint}
            try:
                # A stream has no plan; its own random name keeps states of other streams away.
                self._log.begin({**identity, "plan": uuid.uuid4().hex, "lanes": self._lanes}, self._notes)
            except StoreMismatchError:
                # Another producer began it at the same time, under another name.
                logging.getLogger("brimful").debug("%s: another producer began it", self.directory)
        self._log.expect(identity)
        self._num_lanes = int(self._log.header()["identity"]["lanes"])
        self._registration = self._producers.register(self.name, settings)
        return True

    def _mode(self, known: Registration | None, *, close: bool) -> Mode | None:
        """Return the way from rows to tokens: as given, as this producer was begun, or by the first rows that came."""
        mode: Mode = choice_of(Mode, self._encoder_options.get("mode", Mode.AUTO), argument="mode")
        if mode is not Mode.AUTO:
            return mode
        if known is not None and known.settings.get("mode") in [choice.value for choice in Mode]:
            return Mode(known.settings["mode"])
        rows = self._feed.poll(_BATCH, 0, is_last=close)
        if close and not rows and self._feed.is_ended:
            raise SourceError(f"{self._feed.title} is empty: there is no sample to pack")
        self._feed.seek([])
        kinds = {row.kind for row in rows if isinstance(row, Sample)}
        if not kinds:
            error = next((row for row in rows if isinstance(row, BadSampleError)), None)
            if error is not None:
                raise error
            return None
        return Mode(kinds.pop()) if len(kinds) == 1 else Mode.CHAT

    def _adopt(self) -> None:
        """Go on behind the last record of this producer."""
        for attempt in count():
            end = self._look()
            own_states = [record.state for record in self._records if self._is_own(record)]
            self._clear()
            try:
                if own_states:
                    self._load(own_states[-1])
                break
            except FileNotFoundError as error:
                # Another process of this name has committed more records since, or a network mount shows the file late.
                if attempt == _LATE_ATTEMPTS:
                    raise CorruptFileError(
                        f"{self.directory}: {own_states[-1]['carry_over']['file']} is missing: what producer {self.name} has "
                        f"taken and not packed is lost; begin the stream again"
                    ) from error
                self._clock.sleep(min(_FIRST_WAIT * 2**attempt, 5.0))
        if end is not None:
            self._check_closed()
        self._feed.seek([state["cursor"] for state in own_states])
        self._is_current = True
        if self._producers.is_closed(self._own):
            self._end()

    def _check_closed(self) -> None:
        """Refuse to go on behind the end of the stream, unless this producer was closed in front of it.

        Raises:
            StoreMismatchError: it was not.
        """
        for attempt in range(_LATE_ATTEMPTS):
            if self._producers.is_closed(self._own):
                return
            self._clock.sleep(min(_FIRST_WAIT * 2**attempt, 5.0))
        raise self._ended()

    def _ended(self) -> StoreMismatchError:
        return StoreMismatchError(
            f"{self.directory} has ended with {counted(len(self._records), 'shard')}: nothing can follow. Choose "
            f"another {setting('directory')}"
        )

    def _look(self) -> EndRecord | None:
        """Read the records that came since."""
        if not self._records:
            self._records, end = self._log.records()
            if end is not None:
                return end
        return self._log.next_records(self._records)

    def _is_own(self, record: ShardRecord) -> bool:
        return isinstance(record.state, dict) and record.state.get("producer") == self.name

    def _load(self, state: dict[str, Any]) -> None:
        if state.get("version") != _VERSION:
            raise StateError(
                f"{self.directory}: producer {self.name} has state of version {state.get('version')!r}; this brimful "
                f"reads {_VERSION}"
            )
        carried_items = state["carry_over"]
        ready_items, segments = ([], []) if carried_items is None else load_carry_over(self._store, carried_items)
        self._ready, self._counts = ready_items, dict(state["counts"])
        starts = [int(segment.starts[0]) for segment in segments]
        self._planner.load_state_dict(
            {
                **state["window"],
                "sample_ids": [int(segment.sample_ids[0]) for segment in segments],
                "lengths": [len(segment.input_ids) for segment in segments],
                "starts": starts if any(starts) else None,
            }
        )
        for segment, start in zip(segments, starts, strict=True):
            self._waiting.add(int(segment.sample_ids[0]), segment.input_ids, segment.loss_mask, start)
        self._is_closing = bool(state["is_closing"])
        if ready_items or segments:
            self._oldest = self._clock.now()

    # Samples: encoded, judged, and put into the window.

    def _take(self, samples: Sequence[Sample | BadSampleError]) -> None:
        """Encode samples and let the planner pack them."""
        assert self._encoder is not None
        readable = [sample for sample in samples if isinstance(sample, Sample)]
        results = self._encoder.encode_batch(readable)
        title = self._feed.title
        if self._encoder.engine.id:
            compare_share(self._encoder, readable, results, place=lambda _: title, remedy="begin the stream again")
        remaining_results = iter(results)
        encoded_items = [
            sample if isinstance(sample, BadSampleError) else next(remaining_results) for sample in samples
        ]
        first_id = self._own.first_sample_id + self._counts["samples_read"]
        kept_items: dict[int, EncodedSample] = {}
        num_malformed = num_without_target = 0
        for sample_id, result in enumerate(encoded_items, first_id):
            if isinstance(result, EncodedSample) and not len(result):
                result = BadSampleError("has no tokens", sample_id=sample_id)
            if isinstance(result, BadSampleError):
                self._refuse(result)
                num_malformed += 1
            elif self._no_target is NoTarget.KEEP or self._has_target(result.loss_mask):
                kept_items[sample_id] = result
            elif self._no_target is NoTarget.DROP:
                num_without_target += 1
            else:
                raise NoTargetError(
                    f"sample {sample_id} of {self._feed.title} has no target of the loss; choose "
                    f"{setting('no_target', 'drop')} or {setting('no_target', 'keep')}",
                    sample_id=sample_id,
                )
        lengths = np.array([len(sample) for sample in kept_items.values()], dtype=np.int32)
        packs = self._planner.add(np.array(list(kept_items), dtype=np.int64), lengths)
        for sample_id, sample in kept_items.items():
            # One that is too long and dropped never leaves the planner.
            if len(sample) <= self.capacity or self._overflow is not Overflow.DROP:
                self._waiting.add(sample_id, sample.input_ids, sample.loss_mask)
        self._counts["samples_read"] += len(samples)
        self._counts["malformed"] += num_malformed
        self._counts["without_target"] += num_without_target
        self._ready += self._waiting.take(packs)

    def _refuse(self, error: BadSampleError) -> None:
        if self._on_bad_sample == "error":
            raise error
        self._num_shown += 1
        if self._num_shown <= _ERRORS_SHOWN:
            logging.getLogger("brimful").warning("left out: %s", error)

    def _has_target(self, loss_mask: LossMask) -> bool:
        """Return true if a sample has a target, after truncation; the first token of a segment is none."""
        if self._overflow is Overflow.TRUNCATE:
            loss_mask = loss_mask[: self.capacity]
        elif self._overflow is Overflow.TRUNCATE_LEFT:
            loss_mask = loss_mask[-self.capacity :]
        return bool(loss_mask[1:].any())

    # Committing.

    def _commit(self, num_packs: int) -> bool:
        """Write a shard of the first packs that are ready, and the record of it; return true.

        If another process was first, its record is adopted: of its own name wholly, of another only its number.
        """
        packs, remainder = self._ready[:num_packs], self._ready[num_packs:]
        folder = f"carry/{self._own.number:06d}"
        window = self._planner.state_dict()
        segments = [
            ReadyPack(
                *self._waiting.segment(sample_id, start, length),
                np.array([length], dtype=np.int32),
                np.array([sample_id], dtype=np.int64),
                np.array([start], dtype=np.int32),
            )
            for sample_id, start, length in zip(
                window["sample_ids"],
                window["starts"] or [0] * len(window["sample_ids"]),
                window["lengths"],
                strict=True,
            )
        ]
        num_tokens = sum(len(pack.input_ids) for pack in packs)
        counts = {
            **self._counts,
            "packs": self._counts["packs"] + num_packs,
            "tokens": self._counts["tokens"] + num_tokens,
            "shards": self._counts["shards"] + 1,
        }
        carried_items = save_carry_over(self._store, folder, len(self._records), remainder, segments)
        state = {
            "version": _VERSION,
            "producer": self.name,
            "cursor": self._feed.cursor(),
            "counts": counts,
            # What the rows of the file say is not said twice: records are read by everybody.
            "window": {
                name: value for name, value in window.items() if name not in ("sample_ids", "starts", "lengths")
            },
            "carry_over": carried_items,
            "is_closing": self._is_closing,
        }
        while True:
            record = self._write_shard(packs, num_tokens, state)
            if self._log.commit(record):
                break
            if self._lost_to_own():
                self._is_current = False
                return True
        crash_points.reach("after-commit")
        self._records.append(record)
        self._feed.settle()
        self._ready, self._counts = remainder, counts
        if not self._ready and not len(self._waiting):
            self._oldest = None
        elif self._oldest is not None and not self._is_emptied:
            self._oldest = self._clock.now()
        self._remove_carry_over()
        if self._on_shard is not None:
            self._on_shard(self.statistics)
        return True

    def _write_shard(self, packs: Sequence[ReadyPack], num_tokens: int, state: dict[str, Any]) -> ShardRecord:
        """Publish a shard under the next number, and return its record."""
        seq = len(self._records)
        with self._store.blob(f"shards/{seq:08d}") as blob:
            write_packs_to(blob, packs)
            key = shard_key(seq, blob.xxh3_128)
            blob.publish(key)
        # Killed here, the shard lies unseen under its content's name: nothing was promised.
        crash_points.reach("after-shard")
        sums = (self._records[-1].cum_packs, self._records[-1].cum_tokens) if self._records else (0, 0)
        return ShardRecord(
            seq=seq,
            file=key,
            bytes=blob.size,
            xxh3_128=blob.xxh3_128,
            packs=len(packs),
            tokens=num_tokens,
            cum_packs=sums[0] + len(packs),
            cum_tokens=sums[1] + num_tokens,
            producer_id=self._writer_id,
            state=state,
        )

    def _lost_to_own(self) -> bool:
        """Read the records that others were first with; return true if one is of this producer's name.

        Raises:
            StoreMismatchError: the stream has ended.
        """
        num_known = len(self._records)
        # The record is there, but a network mount may show it late.
        while (end := self._look()) is None and len(self._records) == num_known:
            self._clock.sleep(_FIRST_WAIT)
        if any(map(self._is_own, self._records[num_known:])):
            return True
        if end is not None:
            self._check_closed()
        return end is not None

    def _remove_carry_over(self) -> None:
        """Remove the carry-over of a record that nobody goes on from."""
        own_states = (record.state["carry_over"] for record in reversed(self._records) if self._is_own(record))
        carried_items = next(islice(own_states, _KEPT_CARRY_OVERS, None), None)
        if carried_items is not None:
            self._store.delete(carried_items["file"])

    def _end(self) -> None:
        """Close this producer, and the stream if all others are closed too."""
        self._producers.close(self._own, self.statistics.as_dict())
        self.is_finished = True
        while all(map(self._producers.is_closed, self._producers.all())) and self._look() is None:
            sums = (self._records[-1].cum_packs, self._records[-1].cum_tokens) if self._records else (0, 0)
            self._log.end(EndRecord(len(self._records), *sums))

    def __repr__(self) -> str:
        return f"PackingProducer({self._feed.title!r} to {self.directory!r}, {self.statistics})"


def _of_texts(encoder: Encoder) -> Encoder:
    """Refuse an encoder of media.

    Raises:
        SettingsError: it encodes media, which a stream cannot hold so far.
    """
    if encoder.takes_media:
        raise SettingsError(
            "media cannot be packed while they arrive so far: pack what has come by pack_dataset, or leave out "
            f"{setting('processor')}"
        )
    return encoder
