"""A stream in the text format of Prometheus, version 0.0.4, which every collector of metrics reads.

https://prometheus.io/docs/instrumenting/exposition_formats: for each name its help, its type, and a line for each set of
labels. The values are those of one look at a stream, so nothing is kept between two of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from brimful.report.analysis.stream_status import Silence, StreamStatus, seconds_until_dry

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
"""Type of the text, for HTTP."""

_METRICS: Mapping[str, tuple[str, str]] = {
    "brimful_watch_up": ("gauge", "1 if the last look at the stream succeeded."),
    "brimful_stream_shards_total": ("counter", "Shards committed."),
    "brimful_stream_packs_total": ("counter", "Packs committed."),
    "brimful_stream_tokens_total": ("counter", "Tokens committed."),
    "brimful_stream_bytes_total": ("counter", "Bytes of shards committed."),
    "brimful_stream_kept_bytes": ("gauge", "Bytes of shards that were not removed."),
    "brimful_stream_removed_shards": ("gauge", "Shards that were removed because no checkpoint needs them."),
    "brimful_stream_fill_ratio": ("gauge", "Share of the packs that is tokens."),
    "brimful_stream_ended": ("gauge", "1 if nothing will follow."),
    "brimful_stream_packs_per_second": ("gauge", "Packs appended in a second, over the last minutes."),
    "brimful_stream_seconds_without_shard": ("gauge", "Seconds since a shard was last seen to appear."),
    "brimful_producer_samples_read_total": ("counter", "Samples taken from the source, up to the last commit."),
    "brimful_producer_samples_dropped_total": ("counter", "Samples left out, by reason."),
    "brimful_producer_packs_total": ("counter", "Packs committed by a producer."),
    "brimful_producer_tokens_total": ("counter", "Tokens committed by a producer."),
    "brimful_producer_closed": ("gauge", "1 if the producer has nothing more."),
    "brimful_producer_waiting": ("gauge", "1 while the producer is held back by training or by the disk."),
    "brimful_producer_silent": ("gauge", "1 if the producer should have been heard of and was not."),
    "brimful_producer_heartbeat_seconds": ("gauge", "Seconds since the producer was last heard of."),
    "brimful_training_steps": ("gauge", "Steps that the stream has for a training."),
    "brimful_training_steps_behind": ("gauge", "Steps that the stream has and the slowest rank has not delivered."),
    "brimful_training_acknowledged_packs": ("gauge", "Packs that durable checkpoints were trained on."),
    "brimful_training_first_needed_shard": ("gauge", "First shard that the last acknowledged checkpoint needs."),
    "brimful_training_eta_seconds": ("gauge", "Seconds to the end of a stream that has ended."),
    "brimful_training_seconds_until_dry": ("gauge", "Seconds until the training has caught up with the stream."),
    "brimful_training_missing_ranks": ("gauge", "Ranks that were never heard of."),
    "brimful_reader_epoch": ("gauge", "Pass of a rank over the stream."),
    "brimful_reader_step": ("gauge", "Steps of the pass that a rank has delivered."),
    "brimful_reader_steps_behind": ("gauge", "Steps that the stream has and the rank has not delivered."),
    "brimful_reader_packs_total": ("counter", "Packs delivered by the present processes of a rank."),
    "brimful_reader_tokens_total": ("counter", "Tokens delivered by the present processes of a rank."),
    "brimful_reader_skipped_total": ("counter", "Damaged packs that packs without loss stood for."),
    "brimful_reader_wait_ratio": ("gauge", "Share of the last minutes in which a rank waited for shards."),
    "brimful_reader_waiting": ("gauge", "1 while the rank waits for a shard."),
    "brimful_reader_silent": ("gauge", "1 if the rank should have been heard of and was not."),
    "brimful_reader_heartbeat_seconds": ("gauge", "Seconds since the rank was last heard of."),
}
"""Type and help of every metric."""


def prometheus_text(stream: StreamStatus, *, is_current: bool = True) -> str:
    """Return the metrics of a stream; one that nobody knows is left out.

    Args:
        stream: at one moment.
        is_current: later looks have not failed.
    """
    samples: dict[str, list[str]] = {name: [] for name in _METRICS}

    def add(name: str, value: float | None, **labels: object) -> None:
        if value is not None:
            texts = (f'{key}="{_escaped(str(text))}"' for key, text in {"stream": stream.url, **labels}.items())
            samples[name].append(f"{name}{{{','.join(texts)}}} {float(value):.15g}")

    def add_silence(kind: str, silence: Silence | None, **labels: object) -> None:
        if silence is not None:
            add(f"brimful_{kind}_silent", silence.is_silent, **labels)
            add(f"brimful_{kind}_heartbeat_seconds", silence.seconds, **labels)

    add("brimful_watch_up", is_current)
    for noun in ("shards", "packs", "tokens", "bytes"):
        add(f"brimful_stream_{noun}_total", getattr(stream, noun))
    for noun in ("kept_bytes", "removed_shards", "fill_ratio", "packs_per_second", "seconds_without_shard"):
        add(f"brimful_stream_{noun}", getattr(stream, noun))
    add("brimful_stream_ended", stream.is_ended)
    for producer in stream.producers:
        labels = {"producer": producer.name}
        for noun in ("samples_read", "packs", "tokens"):
            add(f"brimful_producer_{noun}_total", getattr(producer, noun), **labels)
        for reason, number in producer.dropped.items():
            add("brimful_producer_samples_dropped_total", number, **labels, reason=reason)
        add("brimful_producer_closed", producer.is_closed, **labels)
        add("brimful_producer_waiting", bool(producer.waiting_for), **labels)
        add_silence("producer", producer.silence, **labels)
    for training in stream.trainings:
        labels = {"group": training.group}
        add("brimful_training_steps", training.steps_there_are, **labels)
        add("brimful_training_steps_behind", training.steps_behind, **labels)
        add("brimful_training_acknowledged_packs", training.acked_packs, **labels)
        add("brimful_training_first_needed_shard", training.first_needed_shard, **labels)
        add("brimful_training_eta_seconds", training.eta_seconds, **labels)
        add("brimful_training_seconds_until_dry", seconds_until_dry(stream, training), **labels)
        add("brimful_training_missing_ranks", len(training.missing_ranks), **labels)
        for rank in training.ranks:
            labels = {"group": training.group, "dp_rank": str(rank.dp_rank)}
            for noun in ("epoch", "step", "steps_behind"):
                add(f"brimful_reader_{noun}", getattr(rank, noun), **labels)
            for noun in ("packs", "tokens", "skipped"):
                add(f"brimful_reader_{noun}_total", getattr(rank, noun), **labels)
            add("brimful_reader_wait_ratio", rank.wait_share, **labels)
            add("brimful_reader_waiting", bool(rank.waiting_for), **labels)
            add_silence("reader", rank.silence, **labels)
    return "".join(_block(name, lines) for name, lines in samples.items() if lines)


def _block(name: str, lines: Iterable[str]) -> str:
    kind, text = _METRICS[name]
    return "\n".join([f"# HELP {name} {text}", f"# TYPE {name} {kind}", *lines, ""])


def _escaped(text: str) -> str:
    """Return the value of a label with what would end it escaped."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
