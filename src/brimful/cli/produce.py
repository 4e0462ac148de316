"""``brimful produce``: packing while the data still arrives."""

import logging
import threading
from typing import Any

import click

from brimful.base.arguments import settings_from
from brimful.base.progress import Progress
from brimful.base.stopping import keeping
from brimful.base.wording import counted
from brimful.cli.option_values import CAPACITY, output_directory, progress_of, required
from brimful.cli.options import (
    command,
    config_option,
    encoder_options,
    grouped,
    json_option,
    options_of,
    quiet_option,
    row_options,
    source_argument,
    value_option,
)
from brimful.cli.program import in_flags, show
from brimful.encode.choose import EncoderSettings
from brimful.errors import SettingsError
from brimful.media.families import MediaSettings
from brimful.stream.producer import PackingProducer, ProducerSettings

_LINE_SECONDS = 10.0
"""Seconds between two lines of progress."""

_stream_options = grouped(
    "Stream",
    value_option("-o", "DIR", "Directory or URL of the stream.", "--output"),
    click.option("--close", is_flag=True, help="End the stream when the source ends."),
    options_of(
        ProducerSettings,
        "Stream",
        *(
            "producer",
            "packs_per_shard",
            "max_age",
            "lanes",
            "high_water",
            "trainings",
            "min_free_bytes",
        ),
    ),
)


def _report(producer: PackingProducer, progress: Progress, has_ended: threading.Event) -> None:
    """Report every ten seconds what has arrived and when the next shard is due, if anything
    changed.
    """
    counts: dict[str, int] = {}
    while not has_ended.wait(_LINE_SECONDS):
        if counts != (counts := producer.counts):
            seconds = producer.seconds_to_shard
            due = "" if seconds is None else f"; the next shard is due in {seconds:.0f} s or less"
            progress.say(
                f"{counted(counts['samples_read'], 'sample')} read, "
                f"{counted(counts['packs'], 'pack')} in {counted(counts['shards'], 'shard')}{due}"
            )


class _Warnings(logging.Handler):
    """A handler that shows the package's warnings as lines of progress."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        """Show one warning."""
        self._progress.say(in_flags(record.getMessage()))


@command()
@source_argument
@row_options
@options_of(ProducerSettings, "Source", "on_bad_sample")
@encoder_options
@options_of(
    ProducerSettings,
    "Packing",
    "capacity",
    "overflow",
    "no_target",
    "lookahead",
    "algorithm",
    "min_fill",
)
@_stream_options
@json_option
@quiet_option
@config_option
def produce(source: tuple[str, ...], output: str | None, **options: Any) -> None:
    """Append packs to a stream while SOURCE still arrives.

    SOURCE is a directory that fills, a file of JSON lines that grows, another data file, or - for
    JSON lines on standard input. With --processor its images, videos and audio are packed too, and
    x.txt is the transcript of x.wav. Lines of .jsonl are read as they are appended; other files
    must be complete when they get their name. If it is stopped, run the same command again to
    continue; give standard input from its beginning.
    """
    directory = output_directory(output, "name the directory of the stream")
    required(options["capacity"], "--max-length", CAPACITY)
    if len(source) > 1:
        raise SettingsError(
            "one producer has one source: start one for each source, with its own --producer name"
        )
    progress = progress_of(options)
    media = settings_from(MediaSettings, options)
    producer = PackingProducer(
        source[0],
        options["tokenizer"] or media.processor,
        directory,
        settings_from(ProducerSettings, options),
        encoder_options=settings_from(EncoderSettings, options, media=media.open()),
        notes={"source": source[0]},
    )
    handler = _Warnings(progress)
    logging.getLogger("brimful").addHandler(handler)
    has_ended = threading.Event()
    threading.Thread(target=_report, args=(producer, progress, has_ended), daemon=True).start()
    try:
        with keeping(producer.stop):
            statistics = producer.run(close=options["close"])
            if not producer.is_finished:
                progress.say(str(statistics))
    finally:
        has_ended.set()
        logging.getLogger("brimful").removeHandler(handler)
    show(
        {"directory": directory, **statistics.as_dict()},
        lambda: [str(statistics)],
        options["as_json"],
    )
