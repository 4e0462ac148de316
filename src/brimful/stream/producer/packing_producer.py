"""Packing while data still arrives: a producer appends shards to a stream, each sample exactly
once.
"""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from brimful.base.arguments import CAPACITY_NAMES, as_settings, settings_from, understands
from brimful.base.blobs import BlobGroup, crash_points, open_blob_store
from brimful.base.checks import path_of
from brimful.base.fingerprint import fingerprint_of
from brimful.base.typing import AnyPath
from brimful.base.wording import counted, first_few, setting
from brimful.encode.choose import EncoderSettings, encoder_for
from brimful.encode.encoder import Encoder
from brimful.encode.tokenizer import Tokenizer
from brimful.errors import StoreMismatchError
from brimful.sources.settings import RowSettings
from brimful.store.shards import EndRecord, StreamLog, new_producer_id
from brimful.stream.producer.back_pressure import BackPressure, Clock
from brimful.stream.producer.carry_over import save_carry_over
from brimful.stream.producer.directory_feed import open_feed
from brimful.stream.producer.feed import Feed
from brimful.stream.producer.intake import Intake
from brimful.stream.producer.open_window import PackingWindow, ProducerStatistics
from brimful.stream.producer.records import (
    FIRST_WAIT,
    STATE_VERSION,
    SeenRecords,
    late_looks,
)
from brimful.stream.producer.registration import (
    Producers,
    Registration,
    check_apart,
    claim_stream,
    mode_of_arrivals,
)
from brimful.stream.producer.settings import ProducerSettings

_BATCH = 256
"""Samples that are taken and encoded together."""

_MAX_WAIT = 1.0
"""Maximum seconds between two polls of an idle source."""


class PackingProducer:
    """Producer that appends packs to a stream while samples arrive; stops and restarts at any point
    do not change them.

    Samples are packed in a window (``Lookahead``), and packs leave in shards of one size. The
    contents of a shard depend only on the order of the samples, unless ``max_age`` cuts it short.
    Several producers may feed one stream, each with its own name and source; two processes of one
    name share one source and do its work twice, but commit it once.

    Args:
        source: a growing directory, a file, ``-`` or an iterable (``open_feed``), or a ``Feed``.
        encoder: an encoder, a tokenizer, or the name or directory of one.
        directory: path or URL of the stream.
        settings, options: a ``ProducerSettings``, or its fields as keywords: ``capacity``, and
            others.
        encoder_options: an ``EncoderSettings``, or its fields; ``media`` for a family of models
            with media.
        notes: information for users; kept in the header.
        clock: replacement for the machine's clock, for tests.
        on_shard: called with the statistics after each shard that this process commits.

    Raises:
        SettingsError: settings that contradict each other.
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

    @understands(
        {
            "template": "name what encodes by the second argument, encoder",
            "data_dir": "name the data by the first argument, source",
            "output_dir": "name the stream by the third argument, directory",
        },
        ProducerSettings,
        capacity=CAPACITY_NAMES,
    )
    def __init__(
        self,
        source: Any,
        encoder: Encoder | AnyPath | Any,
        directory: AnyPath,
        settings: ProducerSettings | None = None,
        *,
        encoder_options: EncoderSettings | Mapping[str, Any] | None = None,
        notes: Mapping[str, Any] | None = None,
        clock: Clock | None = None,
        on_shard: Callable[[ProducerStatistics], None] | None = None,
        **options: Any,
    ) -> None:
        self.directory = path_of("directory", directory, "the path of a stream")
        self._settings = as_settings(ProducerSettings, settings, options)
        self.capacity, self._per_shard = self._settings.capacity, self._settings.shard_packs
        self._store = open_blob_store(directory)
        self._log, self._producers = StreamLog(self._store), Producers(self._store)
        self._clock, self._on_shard = clock or Clock(), on_shard
        self._pressure = BackPressure(
            self._store,
            clock=self._clock,
            **{
                name: getattr(self._settings, name)
                for name in ("high_water", "trainings", "min_free_bytes")
            },
        )
        if not isinstance(encoder_options, EncoderSettings):
            encoder_options = EncoderSettings(**(encoder_options or {}))
        self._given_encoder, self._encoder_settings = encoder, encoder_options
        self._encoder = encoder if isinstance(encoder, Encoder) else None
        takes_media = (
            encoder_options.media is not None
            if self._encoder is None
            else self._encoder.takes_attachments
        )
        self._carried_media = None
        if takes_media:
            from brimful.media.job.producer import CarriedMedia

            self._carried_media = CarriedMedia(self._store)
        rows = settings_from(RowSettings, vars(self._settings))
        self._feed: Feed = open_feed(
            source, rows, media=takes_media, cache_dir=self._settings.cache_dir
        )
        check_apart(source, self.directory)
        # Two machines may have other files under one name, and two producers may read other columns.
        is_local = isinstance(source, (str, os.PathLike)) and os.path.exists(source)
        origin = [socket.gethostname(), os.path.realpath(source), repr(rows)] if is_local else None
        self._source = fingerprint_of(origin) if origin else None
        self.name = self._settings.producer
        self._notes = dict(notes or {})
        self._writer_id = new_producer_id()
        self._registration: Registration | None = None
        self._records = SeenRecords(self._log, self.name, self._clock, self._carried_media)
        self._window = PackingWindow(self._settings)
        self._oldest: float | None = None  # arrival time of the oldest sample that is in no shard
        self._is_emptied = False  # all waiting samples leave, in full packs or not
        self._is_closing = False
        self._is_stopped = self.is_finished = self._is_current = False

    @property
    def statistics(self) -> ProducerStatistics:
        """Account of this producer so far, including its earlier processes."""
        return self._window.statistics

    def run(self, *, close: bool = False) -> ProducerStatistics:
        """Follow the source until it ends, or until ``stop``; with ``close`` end the stream where
        the source ends.

        With ``close``, a directory ends when all its current files are read. The stream ends once
        all its producers are closed. Without ``close``, samples that fill no shard stay
        uncommitted, and the same call resumes after the last shard.

        Args:
            close: true if nothing will follow the current contents of the source.

        Raises:
            BadSampleError, NoTargetError, OversizedSampleError: by the policies; no committed data
                is lost.
            StoreFullError: no space left; the same call resumes once space is free.
        """
        wait = FIRST_WAIT
        with self._store.used():
            while not (self._is_stopped or self.is_finished):
                if self.step(close=close):
                    wait = FIRST_WAIT
                elif not self.is_finished:
                    self._clock.sleep(wait)
                    wait = min(2 * wait, _MAX_WAIT)
            if self._is_stopped:
                self._keep()
        return self.statistics

    @property
    def counts(self) -> dict[str, int]:
        """Counts so far, for any thread: ``samples_read``, and committed ``packs``, ``tokens``,
        ``shards``.
        """
        return dict(self._window.counts)

    @property
    def seconds_to_shard(self) -> float | None:
        """Maximum seconds until waiting samples leave by age; None if none wait, or without an age.
        From any thread.
        """
        oldest, max_age = self._oldest, self._settings.max_age
        if oldest is None or max_age is None or self._window.is_empty:
            return None
        return max(0.0, oldest + max_age - self._clock.now())

    def stop(self) -> None:
        """Make ``run`` return after the current step, with one more shard if samples were taken
        since the last.

        Its record carries over the rest. Any thread or signal handler may call this.
        """
        self._is_stopped = True

    def close(self) -> ProducerStatistics:
        """Read the source to its end, commit waiting samples, and end the stream if all its
        producers are closed.
        """
        self._is_stopped = False
        return self.run(close=True)

    def step(self, *, close: bool = False) -> bool:
        """Take samples, or commit one shard; return false if there was nothing to do."""
        if self.is_finished:
            return False
        if self._registration is None and not self._start(close=close):
            return False
        try:
            if not self._is_current:
                self._adopt()
            return not self.is_finished and self._advance(close=close)
        except BaseException:
            # Samples taken are in no record: the next step resumes after the last record.
            self._is_current = False
            raise

    def _advance(self, *, close: bool) -> bool:
        if self._pressure.is_on(len(self._records)):
            return False
        is_closing = close and self._is_closing
        num_packs = self._window.packs_of_shard()
        if num_packs and not is_closing:
            return self._commit(num_packs)
        time_now, max_age = self._clock.now(), self._settings.max_age
        if max_age is not None and self._oldest is not None and time_now - self._oldest >= max_age:
            self._is_emptied = True
        if self._is_emptied and not is_closing:
            self._finish_window()
            if self._window.ready:
                return self._commit(self._share())
            self._is_emptied = False
            self._forget_age()
        if not is_closing:
            first_id = self._own.first_sample_id + self._window.counts["samples_read"]
            samples = self._feed.poll(_BATCH, first_id, is_last=close)
            if samples:
                self._oldest = time_now if self._oldest is None else self._oldest
                self._window.add(*self._intake.take(samples, first_id))
                return True
            if not (close and self._feed.is_ended):
                self.is_finished = self._feed.is_ended
                return False
        self._is_closing = True
        self._window.finish()
        if self._window.ready:
            return self._commit(self._share())
        self._end()
        return False

    def _forget_age(self, oldest: float | None = None) -> None:
        """Restart the age. Until each lane has a shard it counts from the first sample: training
        cannot begin before.
        """
        if len(self._records) >= self._num_lanes:
            self._oldest = oldest

    def _finish_window(self) -> None:
        """Empty the window; if a lane has no shard, into enough packs for each lane, so that
        training can begin.
        """
        self._window.finish(self._num_lanes - len(self._records))

    def _share(self) -> int:
        """Return the number of ready packs for the next shard, so that its lane is level with the
        others.
        """
        lanes, num_ready = self._num_lanes, len(self._window.ready)
        totals = [
            sum(record.packs for record in self._records.shards[lane::lanes])
            for lane in range(lanes)
        ]
        level, num_left = min(totals), num_ready
        while (num_missing := sum(max(0, level + 1 - total) for total in totals)) <= num_ready:
            num_left, level = num_ready - num_missing, level + 1
        share = max(1, level + (num_left > 0) - totals[len(self._records) % lanes])
        return min(share, num_ready, self._window.packs_of_shard() or self._per_shard)

    def _keep(self) -> None:
        """Commit a shard if samples were taken since the last one: its record carries over the
        rest.
        """
        states = self._records.states()
        num_kept = states[-1]["counts"]["samples_read"] if states else 0
        if (
            not self._is_current
            or self.is_finished
            or self._window.counts["samples_read"] == num_kept
        ):
            return
        if not self._window.ready:
            self._finish_window()
        if self._window.ready:
            self._commit(self._share())

    @property
    def _own(self) -> Registration:
        assert self._registration is not None
        return self._registration

    def _start(self, *, close: bool) -> bool:
        """Claim the stream and register, once the encoding mode is known; return false until
        then.
        """
        known = self._producers.named(self.name)
        if known is None and self._records.look() is not None:
            raise self._ended()
        mode = "encoder" if known is None else known.settings.get("mode", "encoder")
        if self._encoder is None:
            known_mode = mode_of_arrivals(self._encoder_settings, self._feed, known, close=close)
            if known_mode is None:
                return False
            mode = known_mode.value
            tokenizer = None if self._given_encoder is None else Tokenizer.of(self._given_encoder)
            self._encoder = encoder_for(
                None, tokenizer, replace(self._encoder_settings, mode=known_mode)
            )
        self._intake = Intake(self._encoder, self._settings, self._feed.title)
        self._num_lanes = claim_stream(self._log, self._encoder, self._settings, self._notes)
        self._registration = self._producers.register(
            self.name, {"mode": mode, **self._settings.registered}, self._source
        )
        return True

    def _adopt(self) -> None:
        """Resume after the last record of this producer."""
        self._window, states, end = self._records.recover(self._settings)
        self._is_closing, self._is_emptied = bool(states) and bool(states[-1]["is_closing"]), False
        self._oldest = None if self._window.is_empty else self._clock.now()
        if end is not None:
            self._check_closed()
        self._feed.seek([state["cursor"] for state in states])
        self._is_current = True
        if self._producers.is_closed(self._own):
            self._end()

    def _check_closed(self) -> None:
        """Refuse to resume after the end of the stream, unless this producer was closed before it.

        Raises:
            StoreMismatchError: this producer was not closed.
        """
        if not any(self._producers.is_closed(self._own) for _ in late_looks(self._clock)):
            raise self._ended()

    def _ended(self) -> StoreMismatchError:
        return StoreMismatchError(
            f"{self.directory} has ended with {counted(len(self._records), 'shard')}: nothing can "
            f"follow. Choose another {setting('directory')}"
        )

    def _commit(self, num_packs: int) -> bool:
        """Write a shard of the first ready packs and its record; return true.

        If another process was first, its record is adopted: completely for the same name, otherwise
        only its number.
        """
        # Not after the last commit: there, removing a file waits until the device has flushed.
        self._records.clear_carry_over()
        window, records = self._window, self._records
        packs, ready_packs = window.ready[:num_packs], window.ready[num_packs:]
        counts = window.counts_after(packs)
        with BlobGroup(self._store) as files:
            folder = f"carry/{self._own.index:06d}"
            carry_over = save_carry_over(
                files, folder, len(records), ready_packs, window.segments(), self._carried_media
            )
            state = {
                "version": STATE_VERSION,
                "producer": self.name,
                "cursor": self._feed.cursor(),
                "counts": counts,
                "window": window.planner_state(),
                "carry_over": carry_over,
                "is_closing": self._is_closing,
            }
            while not self._log.commit(
                record := records.write_shard(files, packs, state, self._writer_id), files
            ):
                if self._lost_to_own():
                    self._is_current = False
                    return True
            crash_points.reach("after-commit")
        records.shards.append(record)
        self._feed.settle()
        window.drop_committed(num_packs, counts)
        if window.is_empty:
            self._forget_age()
        elif self._oldest is not None and not self._is_emptied:
            self._forget_age(self._clock.now())
        if self._on_shard is not None:
            self._on_shard(self.statistics)
        return True

    def _lost_to_own(self) -> bool:
        """Read the records that other processes committed first; return true if one has this
        producer's name.

        Raises:
            StoreMismatchError: the stream has ended.
        """
        num_known = len(self._records)
        # The record exists, but a network mount may show it late.
        while (end := self._records.look()) is None and len(self._records) == num_known:
            self._clock.sleep(FIRST_WAIT)
        if self._records.states(num_known):
            return True
        if end is not None:
            self._check_closed()
        return end is not None

    def _end(self) -> None:
        """Close this producer, and the stream if all others are closed too."""
        self._records.clear_carry_over()
        self._producers.close(self._own, self.statistics.as_dict())
        self.is_finished = True
        while True:
            # This one is closed, even if its file is not visible yet.
            producers = [
                producer for producer in self._producers.all() if producer.name != self.name
            ]
            open_names = [
                producer.name for producer in producers if not self._producers.is_closed(producer)
            ]
            if open_names or self._records.look() is not None:
                break
            self._log.end(EndRecord(len(self._records), *self._records.sums))
        if open_names:
            # If names are shown late, two producers that close at once each see the other open, and
            # none ends the stream.
            logging.getLogger("brimful").warning(
                "%s stays open: not closed by %s; if all its producers are and it has no end, run "
                "one of their commands again",
                *(self.directory, first_few(open_names, len(open_names))),
            )

    def __repr__(self) -> str:
        return f"PackingProducer({self._feed.title!r} to {self.directory!r}, {self.statistics})"
