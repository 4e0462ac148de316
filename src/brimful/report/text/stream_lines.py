"""A stream as lines: in full, as one line for a log, and as metrics of Prometheus.

Prometheus' text format, version 0.0.4, is for the textfile collector of node-exporter
(https://prometheus.io/docs/instrumenting/exposition_formats): for each name its help, its type, and
a line for each set of labels.
"""

from __future__ import annotations

import json

from brimful.base.progress import clock
from brimful.base.wording import counted, percent, size_of
from brimful.report.analysis.stream_watch import StreamStatus, TrainingStatus

_MAX_RANKS = 8
"""Maximum number of ranks named in one line, the slowest first."""


def describe_stream(stream: StreamStatus) -> list[str]:
    """Describe a stream, its producers and its trainings."""
    removed = (
        f", {counted(stream.removed_shards, 'shard')} removed" if stream.removed_shards else ""
    )
    lines = [
        f"stream         {stream.url}: {'ended' if stream.is_ended else 'growing'}, "
        f"{size_of(stream.kept_bytes)}{removed}",
        f"produced       {counted(stream.packs, 'pack')} in {counted(stream.shards, 'shard')}, "
        f"{stream.tokens:,} tokens, {percent(stream.fill_ratio)} of "
        f"{stream.capacity:,}{_growth(stream)}",
    ]
    for producer in stream.producers:
        dropped = "".join(
            f", {count:,} {reason.replace('_', ' ')}" for reason, count in producer.dropped.items()
        )
        lines.append(
            f"producer       {producer.name}: {counted(producer.samples_read, 'sample')} "
            f"read{dropped}; {counted(producer.packs, 'pack')} in "
            f"{counted(producer.shards, 'shard')}{'; closed' * producer.is_closed}"
        )
    for training in stream.trainings:
        lines += _training(training)
    if not stream.trainings:
        lines.append('training       none has acknowledged a checkpoint: loader.ack("run-1")')
    return lines


def stream_line(stream: StreamStatus) -> str:
    """Describe a stream in one line, for logs."""
    phrases = [
        f"{counted(stream.shards, 'shard')}, {counted(stream.packs, 'pack')}{_growth(stream)}"
    ]
    for producer in stream.producers:
        phrases.append(
            f"{producer.name} "
            f"{counted(producer.samples_read, 'sample')}{' (closed)' * producer.is_closed}"
        )
    for training in stream.trainings:
        text = (
            f"{training.group} step {training.step:,} of "
            f"{training.steps_there_are:,}{_speed(training)}"
        )
        late = max((rank.steps_behind for rank in training.ranks), default=0)
        phrases.append(text + (f", a rank {counted(late, 'step')} behind" if late else ""))
    return "; ".join(phrases)


def _growth(stream: StreamStatus) -> str:
    if stream.is_ended:
        return ""
    text = ""
    if stream.packs_per_second is not None:
        text = (
            f"; {_rate(stream.packs_per_second)} packs/s, "
            f"{stream.tokens_per_second or 0:,.0f} tokens/s"
        )
    if stream.seconds_without_shard is not None:
        text += f"; last shard {clock(stream.seconds_without_shard)} ago"
    return text


def _training(training: TrainingStatus) -> list[str]:
    name = f" ({training.checkpoint})" if training.checkpoint else ""
    lines = [
        f"training       {training.group}: step {training.step:,} of "
        f"{training.steps_there_are:,}{name}, acknowledged {clock(training.seconds_ago)} "
        f"ago{_speed(training)}; needs shards from {training.first_needed_shard:,} on"
    ]
    if training.ranks:
        late = sorted(
            (rank for rank in training.ranks if rank.steps_behind), key=lambda rank: rank.step
        )
        names = [
            f"rank {rank.dp_rank} at step {rank.step:,}, {rank.steps_behind:,} behind"
            for rank in late[:_MAX_RANKS]
        ]
        names += [f"{len(late) - _MAX_RANKS:,} more"] if len(late) > _MAX_RANKS else []
        skipped = sum(rank.skipped for rank in training.ranks)
        names += [f"{counted(skipped, 'pack')} skipped"] if skipped else []
        acknowledging = f"{len(training.ranks):,} of {training.dp_world_size:,} acknowledge"
        lines.append(
            f"ranks          {'; '.join([acknowledging, *(names or ['all at the same step'])])}"
        )
    return lines


def _speed(training: TrainingStatus) -> str:
    is_ahead = training.step > training.steps_there_are
    text = ", ahead of the log, so no shard is removed" if is_ahead else ""
    if training.steps_per_second is not None:
        text += f", {_rate(training.steps_per_second)} steps/s"
    if training.eta_seconds is not None:
        text += f", ETA {clock(training.eta_seconds)}"
    if training.dry_seconds is not None:
        text += f", runs dry in {clock(training.dry_seconds)}"
    return text


def _rate(value: float) -> str:
    """Return a rate with three digits, for display.

    >>> _rate(0.0), _rate(0.01234), _rate(3.21), _rate(12_345.6)
    ('0', '0.0123', '3.2', '12,346')
    """
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3g}"


_METRICS = {
    "brimful_stream_shards_total": "Shards committed.",
    "brimful_stream_packs_total": "Packs committed.",
    "brimful_stream_tokens_total": "Tokens committed.",
    "brimful_stream_bytes_total": "Bytes of shards committed.",
    "brimful_stream_kept_bytes": "Bytes of shards that were not removed.",
    "brimful_stream_removed_shards": "Shards that were removed because no checkpoint needs them.",
    "brimful_stream_fill_ratio": "Share of the packs that is tokens.",
    "brimful_stream_ended": "1 if nothing will follow.",
    "brimful_producer_samples_read_total": "Samples taken from the source, up to the last commit.",
    "brimful_producer_samples_dropped_total": "Samples left out, by reason.",
    "brimful_producer_packs_total": "Packs committed by a producer.",
    "brimful_producer_tokens_total": "Tokens committed by a producer.",
    "brimful_producer_closed": "1 if the producer has nothing more.",
    "brimful_training_step": "Step of the last acknowledged checkpoint.",
    "brimful_training_packs": "Packs that durable checkpoints were trained on.",
    "brimful_training_steps_behind": "Steps that the stream has after the checkpoint.",
    "brimful_training_first_needed_shard": "First shard that the last acknowledged checkpoint "
    "needs.",
    "brimful_training_seconds_ago": "Seconds since the last acknowledgement.",
    "brimful_training_eta_seconds": "Seconds to the end of a stream that has ended.",
    "brimful_training_dry_seconds": "Seconds until the training has caught up with the stream.",
    "brimful_rank_step": "Step that a rank acknowledged last.",
    "brimful_rank_skipped_total": "Damaged packs that a rank skipped.",
}
"""Help of every metric; a name that ends with ``_total`` is a counter, any other a gauge."""


def prometheus_text(stream: StreamStatus) -> str:
    """Return the metrics of a stream; a value that is not known is left out."""
    samples: dict[str, list[str]] = {name: [] for name in _METRICS}

    def add(name: str, value: float | None, **labels: object) -> None:
        if value is not None:
            # As JSON a text has the characters escaped that would end it.
            texts = (
                f"{key}={json.dumps(str(text), ensure_ascii=False)}"
                for key, text in {"stream": stream.url, **labels}.items()
            )
            samples[f"brimful_{name}"].append(
                f"brimful_{name}{{{','.join(texts)}}} {float(value):.15g}"
            )

    for noun in ("shards", "packs", "tokens", "bytes"):
        add(f"stream_{noun}_total", getattr(stream, noun))
    for noun in ("kept_bytes", "removed_shards", "fill_ratio"):
        add(f"stream_{noun}", getattr(stream, noun))
    add("stream_ended", stream.is_ended)
    for producer in stream.producers:
        labels = {"producer": producer.name}
        for noun in ("samples_read", "packs", "tokens"):
            add(f"producer_{noun}_total", getattr(producer, noun), **labels)
        for reason, count in producer.dropped.items():
            add("producer_samples_dropped_total", count, **labels, reason=reason)
        add("producer_closed", producer.is_closed, **labels)
    for training in stream.trainings:
        labels = {"group": training.group}
        for noun in (
            *("step", "packs", "steps_behind", "first_needed_shard"),
            *("seconds_ago", "eta_seconds", "dry_seconds"),
        ):
            add(f"training_{noun}", getattr(training, noun), **labels)
        for rank in training.ranks:
            add("rank_step", rank.step, **labels, dp_rank=rank.dp_rank)
            add("rank_skipped_total", rank.skipped, **labels, dp_rank=rank.dp_rank)
    blocks = []
    for name, lines in samples.items():
        metric_type = "counter" if name.endswith("_total") else "gauge"
        blocks += (
            [f"# HELP {name} {_METRICS[name]}", f"# TYPE {name} {metric_type}", *lines]
            if lines
            else []
        )
    return "".join(f"{line}\n" for line in blocks)
