"""A stream as lines: in full, and as one line for a log."""

from brimful.base.progress import clock
from brimful.base.wording import counted, percent, size_of
from brimful.report.analysis.stream_status import ProducerStatus, StreamStatus, TrainingStatus

_MAX_RANKS = 8
"""Maximum number of ranks named in one line, the slowest first."""


def describe_stream(stream: StreamStatus) -> list[str]:
    """Describe a stream, its producers and its trainings."""
    removed = f", {counted(stream.removed_shards, 'shard')} removed" if stream.removed_shards else ""
    lines = [
        f"stream         {stream.url}: {'ended' if stream.is_ended else 'growing'}, {size_of(stream.kept_bytes)}{removed}",
        f"produced       {counted(stream.packs, 'pack')} in {counted(stream.shards, 'shard')}, {stream.tokens:,} tokens, "
        f"{percent(stream.fill_ratio)} of {stream.capacity:,}{_growth(stream)}",
        *(f"producer       {_producer(producer)}" for producer in stream.producers),
    ]
    for training in stream.trainings:
        lines += _training(training)
    if not stream.trainings:
        lines.append('training       none has acknowledged a checkpoint: loader.ack("run-1")')
    return lines


def stream_line(stream: StreamStatus) -> str:
    """Describe a stream in one line, for logs."""
    parts = [f"{counted(stream.shards, 'shard')}, {counted(stream.packs, 'pack')}{_growth(stream)}"]
    for producer in stream.producers:
        parts.append(f"{producer.name} {counted(producer.samples_read, 'sample')}{' (closed)' * producer.is_closed}")
    for training in stream.trainings:
        text = f"{training.group} step {training.step:,} of {training.steps_there_are:,}{_speed(training)}"
        late = max((rank.steps_behind for rank in training.ranks), default=0)
        parts.append(text + (f", a rank {counted(late, 'step')} behind" if late else ""))
    return "; ".join(parts)


def _growth(stream: StreamStatus) -> str:
    if stream.is_ended:
        return ""
    text = ""
    if stream.packs_per_second is not None:
        text = f"; {_rate(stream.packs_per_second)} packs/s, {stream.tokens_per_second or 0:,.0f} tokens/s"
    if stream.seconds_without_shard is not None:
        text += f"; last shard {clock(stream.seconds_without_shard)} ago"
    return text


def _producer(producer: ProducerStatus) -> str:
    dropped = "".join(f", {number:,} {reason.replace('_', ' ')}" for reason, number in producer.dropped.items())
    return (
        f"{producer.name}: {counted(producer.samples_read, 'sample')} read{dropped}; {counted(producer.packs, 'pack')} in "
        f"{counted(producer.shards, 'shard')}{'; closed' * producer.is_closed}"
    )


def _training(training: TrainingStatus) -> list[str]:
    name = f" ({training.checkpoint})" if training.checkpoint else ""
    lines = [
        f"training       {training.group}: step {training.step:,} of {training.steps_there_are:,}{name}, acknowledged "
        f"{clock(training.seconds_ago)} ago{_speed(training)}; needs shards from {training.first_needed_shard:,} on"
    ]
    if training.ranks:
        late = sorted((rank for rank in training.ranks if rank.steps_behind), key=lambda rank: rank.step)
        names = [
            f"rank {rank.dp_rank} at step {rank.step:,}, {rank.steps_behind:,} behind" for rank in late[:_MAX_RANKS]
        ]
        names += [f"{len(late) - _MAX_RANKS:,} more"] if len(late) > _MAX_RANKS else []
        skipped = sum(rank.skipped for rank in training.ranks)
        names += [f"{counted(skipped, 'pack')} skipped"] if skipped else []
        heard = f"{len(training.ranks):,} of {training.dp_world_size:,} acknowledge"
        lines.append(f"ranks          {'; '.join([heard, *(names or ['all at the same step'])])}")
    return lines


def _speed(training: TrainingStatus) -> str:
    text = ""
    if training.steps_per_second is not None:
        text = f", {_rate(training.steps_per_second)} steps/s"
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
