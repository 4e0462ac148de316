"""``brimful produce``: packing while the data still arrives."""

import logging
import threading
from typing import Any

import click

from brimful.cli.arguments import encoder_settings, field_names, media_family, output_directory, required
from brimful.cli.command import GroupedCommand, choice_option, grouped, value_option
from brimful.cli.config import SourceArgument, config_option
from brimful.cli.flags import in_flags
from brimful.cli.options import (
    capacity_option,
    encoder_options,
    json_option,
    media_options,
    no_target_option,
    overflow_option,
)
from brimful.cli.terminal import show
from brimful.errors import SettingsError
from brimful.materialize.producer import PackingProducer
from brimful.materialize.producer.settings import MAX_AGE
from brimful.messages import counted
from brimful.plan.stream.lookahead import LOOKAHEAD_ALGORITHMS
from brimful.progress import Progress, make_progress
from brimful.sources.formats import FORMATS
from brimful.stopping import keeping

_LINE_SECONDS = 10.0
"""Seconds between two lines of progress."""

_row_options = grouped(
    "Source",
    value_option(
        "--format", "NAME", f"What rows look like: {', '.join(FORMATS)}. Detected if not given.", "format_name"
    ),
    value_option("--field", "NAME=KEY", "A field of the format under another key.", "fields", multiple=True),
    value_option("--ignore", "NAME", "A column or mark that may be left out.", multiple=True),
    value_option("--prompt", "TEXT", "The user's turn for captions, boxes and transcripts."),
    choice_option("--on-bad-sample", ["error", "skip"], "A malformed row stops the job, or is counted and shown."),
)

_window_options = grouped(
    "Packing",
    capacity_option,
    overflow_option,
    no_target_option,
    value_option("--lookahead", "SAMPLES", "Samples that are packed together.", type=int, default=1024),
    value_option(
        "--algorithm", "NAME", f"How to pack them: {', '.join(LOOKAHEAD_ALGORITHMS)}.", default="best_fit_decreasing"
    ),
    value_option("--min-fill", "SHARE", "Packs with less fill wait for samples that fit.", type=float, default=1.0),
)

_stream_options = grouped(
    "Stream",
    value_option("-o", "DIR", "Directory or URL of the stream.", "--output"),
    value_option(
        "--producer", "NAME", "Name of this producer; each source of a stream has its own.", default="producer"
    ),
    click.option("--close", is_flag=True, help="End the stream when the source ends."),
    value_option("--packs-per-shard", "N", "Packs per shard (default: 64 MiB).", type=int),
    value_option(
        "--max-age",
        "SECONDS",
        f"After this time without a shard, write all samples, at any fill (default: {MAX_AGE:g}; inf for never).",
        type=float,
        default=MAX_AGE,
    ),
    value_option("--lanes", "N", "Packs per global batch in training.", type=int, default=1),
    value_option("--high-water", "SHARDS", "Shards that may be ahead of the slowest --training.", type=int),
    value_option("--training", "NAME", "Name of a training run that acknowledges.", "trainings", multiple=True),
    value_option("--min-free-bytes", "BYTES", "Bytes of the disk to keep free.", type=int, default=0),
)


class _Account(threading.Thread):
    """A thread that reports every ten seconds what has arrived and when the next shard is due, if anything changed."""

    def __init__(self, producer: PackingProducer, progress: Progress) -> None:
        super().__init__(daemon=True)
        self._producer, self._progress = producer, progress
        self.has_ended = threading.Event()

    def run(self) -> None:
        """Report until the work has ended."""
        counts: dict[str, int] = {}
        while not self.has_ended.wait(_LINE_SECONDS):
            if counts != (counts := self._producer.counts):
                self._progress.say(self._line(counts))

    def _line(self, counts: dict[str, int]) -> str:
        line = f"{counted(counts['samples_read'], 'sample')} read, {counted(counts['packs'], 'pack')} in {counted(counts['shards'], 'shard')}"
        seconds = self._producer.seconds_to_shard
        return line if seconds is None else f"{line}; the next shard is due in {seconds:.0f} s or less"


class _Warnings(logging.Handler):
    """A handler that shows the package's warnings as lines of progress."""

    def __init__(self, progress: Progress) -> None:
        super().__init__(logging.WARNING)
        self._progress = progress

    def emit(self, record: logging.LogRecord) -> None:
        """Show one warning."""
        self._progress.say(in_flags(record.getMessage()))


@click.command(cls=GroupedCommand)
@click.argument("source", nargs=-1, required=True, cls=SourceArgument)
@_row_options
@encoder_options
@media_options
@_window_options
@_stream_options
@grouped("Output", json_option, click.option("--quiet", is_flag=True, help="No progress."))
@config_option
def produce(source: tuple[str, ...], output: str | None, **options: Any) -> None:
    """Append packs to a stream while SOURCE still arrives.

    SOURCE is a directory that fills, a file of JSON lines that grows, another data file, or - for JSON lines on
    standard input. With --processor its images, videos and audio are packed too, and x.txt is the transcript of x.wav.
    Lines of .jsonl are read as they are appended; other files must be complete when they get their name. If it is
    stopped, run the same command again to continue; give standard input from its beginning.
    """
    directory = output_directory(output, "name the directory of the stream")
    why = "say how many tokens a pack may hold (the sequence length you train with)"
    capacity = required(options["capacity"], "--max-length", why)
    if len(source) > 1:
        raise SettingsError("one producer has one source: start one for each source, with its own --producer name")
    progress = make_progress("json" if options["as_json"] else "none" if options["quiet"] else "auto")
    names = (
        *("producer", "lookahead", "algorithm", "min_fill", "overflow", "no_target", "on_bad_sample", "max_age"),
        *("packs_per_shard", "lanes", "high_water", "trainings", "min_free_bytes", "ignore", "prompt"),
        *("media_dir", "media_outside"),
    )
    family = media_family(options)
    producer = PackingProducer(
        source[0],
        options["tokenizer"] or options["processor"],
        directory,
        capacity=capacity,
        encoder_options={
            **encoder_settings(options),
            **({} if family is None else {"media": family, "compare_media": options["compare_media"]}),
        },
        notes={"source": source[0]},
        format=options["format_name"],
        fields=field_names(options) or None,
        **{name: options[name] for name in names},
    )
    handler = _Warnings(progress)
    logging.getLogger("brimful").addHandler(handler)
    account = _Account(producer, progress)
    account.start()
    try:
        with keeping(producer.stop):
            statistics = producer.run(close=options["close"])
            if not producer.is_finished:
                progress.say(str(statistics))
    finally:
        account.has_ended.set()
        logging.getLogger("brimful").removeHandler(handler)
    show(lambda: {"directory": directory, **statistics.as_dict()}, lambda: [str(statistics)], options["as_json"])
