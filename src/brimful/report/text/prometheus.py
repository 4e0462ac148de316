"""A stream in the text format of Prometheus, version 0.0.4, for the textfile collector of node-exporter.

https://prometheus.io/docs/instrumenting/exposition_formats: for each name its help, its type, and a line for each set of
labels. The values come from one look at a stream.
"""

from __future__ import annotations

from brimful.report.analysis.stream_status import StreamStatus

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
    "brimful_training_first_needed_shard": "First shard that the last acknowledged checkpoint needs.",
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
            texts = (f'{key}="{_escaped(str(text))}"' for key, text in {"stream": stream.url, **labels}.items())
            samples[f"brimful_{name}"].append(f"brimful_{name}{{{','.join(texts)}}} {float(value):.15g}")

    for noun in ("shards", "packs", "tokens", "bytes"):
        add(f"stream_{noun}_total", getattr(stream, noun))
    for noun in ("kept_bytes", "removed_shards", "fill_ratio"):
        add(f"stream_{noun}", getattr(stream, noun))
    add("stream_ended", stream.is_ended)
    for producer in stream.producers:
        labels = {"producer": producer.name}
        for noun in ("samples_read", "packs", "tokens"):
            add(f"producer_{noun}_total", getattr(producer, noun), **labels)
        for reason, number in producer.dropped.items():
            add("producer_samples_dropped_total", number, **labels, reason=reason)
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
    return "".join(_block(name, lines) for name, lines in samples.items() if lines)


def _block(name: str, lines: list[str]) -> str:
    kind = "counter" if name.endswith("_total") else "gauge"
    return "\n".join([f"# HELP {name} {_METRICS[name]}", f"# TYPE {name} {kind}", *lines, ""])


def _escaped(text: str) -> str:
    """Return the value of a label, with characters escaped that would end it."""
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')
