"""A stream as lines: once in full, and in one line for a log."""

from collections.abc import Iterator, Sequence

from brimful.messages import counted, percent, size_of
from brimful.progress import clock
from brimful.report.analysis.stream_status import (
    ProducerStatus,
    RankStatus,
    Silence,
    StreamStatus,
    TrainingStatus,
    seconds_until_dry,
)

_MIN_RANKS = 4
"""Ranks that are shown of each training on the smallest terminal."""


def describe_stream(stream: StreamStatus, *, num_lines: int | None = None) -> list[str]:
    """Describe a stream, its producers, and its trainings rank by rank.

    Args:
        stream: at one moment.
        num_lines: most lines; None for all. Ranks that are in order are left out first, and counted.
    """
    removed = f", {counted(stream.removed_shards, 'shard')} removed" if stream.removed_shards else ""
    lines = [
        f"stream         {stream.url}: {'ended' if stream.is_ended else 'growing'}, {size_of(stream.kept_bytes)}{removed}",
        f"produced       {counted(stream.packs, 'pack')} in {counted(stream.shards, 'shard')}, {stream.tokens:,} tokens, "
        f"{percent(stream.fill_ratio)} of {stream.capacity:,}{_growth(stream)}",
        *(f"producer       {_producer(producer)}" for producer in stream.producers),
    ]
    # What is left of the screen is shared by the tables of ranks.
    tables = [training for training in stream.trainings if training.ranks]
    room = None
    if num_lines is not None and tables:
        num_others = len(lines) + sum(len(_training(stream, training)) for training in stream.trainings)
        room = max(_MIN_RANKS, (num_lines - num_others) // len(tables) - 2)
    for training in stream.trainings:
        lines += _training(stream, training)
        if training.ranks:
            lines += _ranks(training.ranks, room)
    if not stream.trainings:
        lines.append('training       none says how far it is: StreamLoader(…, group="run-1")')
    return lines


def stream_line(stream: StreamStatus) -> str:
    """Describe a stream in one line, for logs.

    Every training has its slowest rank in it, and the number of those that are silent.
    """
    parts = [f"{counted(stream.shards, 'shard')}, {counted(stream.packs, 'pack')}{_growth(stream)}"]
    for producer in stream.producers:
        state = _state(producer.silence, is_closed=producer.is_closed) or producer.waiting_for
        parts.append(f"{producer.name} {counted(producer.samples_read, 'sample')}{f' ({state})' if state else ''}")
    for training in stream.trainings:
        text = training.group
        if training.step is not None:
            text += f" step {training.step:,} of {training.steps_there_are:,}"
        if training.steps_per_second is not None:
            text += f", {_rate(training.steps_per_second)} steps/s, wait {percent(training.wait_share or 0.0)}"
        if training.acked_step is not None:
            text += f", durable {training.acked_step:,}"
        num_silent = sum(rank.silence.is_silent for rank in training.ranks)
        text += f", {counted(num_silent, 'rank')} silent" if num_silent else ""
        parts.append(text)
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
    text = (
        f"{producer.name}: {counted(producer.samples_read, 'sample')} read{dropped}; {counted(producer.packs, 'pack')} in "
        f"{counted(producer.shards, 'shard')}"
    )
    state = _state(producer.silence, is_closed=producer.is_closed)
    if not state and producer.silence is not None:
        rate = producer.packs_per_second
        state = f"waiting: {producer.waiting_for}" if producer.waiting_for else "working"
        state += "" if rate is None else f", {_rate(rate)} packs/s"
    return f"{text}; {state}" if state else text


def _state(silence: Silence | None, *, is_closed: bool = False) -> str:
    if is_closed:
        return "closed"
    if silence is None:
        return ""
    if silence.is_over:
        return "stopped"
    return f"silent for {clock(silence.seconds)}" if silence.is_silent else ""


def _training(stream: StreamStatus, training: TrainingStatus) -> list[str]:
    parts = []
    if training.step is not None and training.steps_there_are is not None:
        parts.append(f"step {training.step:,} of {training.steps_there_are:,}, {training.steps_behind:,} behind")
    if training.steps_per_second is not None:
        parts.append(
            f"{_rate(training.steps_per_second)} steps/s, {training.tokens_per_second or 0:,.0f} tokens/s, "
            f"waiting {percent(training.wait_share or 0.0)} of the time"
        )
    seconds_dry = seconds_until_dry(stream, training)
    if training.eta_seconds is not None:
        parts.append(f"ETA {clock(training.eta_seconds)}")
    elif seconds_dry is not None:
        parts.append(f"runs dry in {clock(seconds_dry)}")
    lines = [f"training       {training.group}: {'; '.join(parts) or 'no rank says how far it is'}"]
    if training.missing_ranks:
        lines.append(
            f"               {counted(len(training.missing_ranks), 'rank')} not heard of: {_few(training.missing_ranks)}"
        )
    if training.acked_packs is not None:
        place = (
            f"{counted(training.acked_packs, 'pack')}"
            if training.acked_step is None
            else f"step {training.acked_step:,}"
        )
        name = f" ({training.checkpoint})" if training.checkpoint else ""
        lines.append(
            f"durable        {training.group}: {place}{name}; needs shards from {training.first_needed_shard:,} on"
        )
    else:
        lines.append(f"durable        {training.group}: nothing acknowledged so far")
    return lines


def _few(numbers: Sequence[int]) -> str:
    shown = ", ".join(map(str, numbers[:8]))
    return f"{shown} and {len(numbers) - 8:,} more" if len(numbers) > 8 else shown


def _ranks(ranks: Sequence[RankStatus], room: int | None) -> Iterator[str]:
    """Draw ranks as a table; those that are behind, silent or waiting come first if there is no room for all."""
    shown = list(ranks)
    if room is not None and len(ranks) > room:
        worst = sorted(ranks, key=lambda rank: (not rank.silence.is_silent, rank.step, -(rank.wait_share or 0.0)))
        shown = sorted(worst[:room], key=lambda rank: rank.dp_rank)
    yield f"  {'rank':>12}  {'epoch':>6}  {'step':>9}  {'behind':>7}  {'packs/s':>8}  {'tokens/s':>10}  {'wait':>7}  {'skipped':>7}  {'heard':>6}  state"
    for rank in shown:
        state = _state(rank.silence) or (f"waiting for {rank.waiting_for}" if rank.waiting_for else "reading")
        wait = "" if rank.wait_share is None else percent(min(rank.wait_share, 1.0))
        name = f"{rank.dp_rank} of {rank.dp_world_size}"
        yield (
            f"  {name:>12}  {rank.epoch:>6,}  {rank.step:>9,}  {rank.steps_behind:>7,}  {_rate(rank.packs_per_second):>8}  "
            f"{_rate(rank.tokens_per_second):>10}  {wait or '-':>7}  {rank.skipped:>7,}  {clock(rank.silence.seconds):>6}  {state}"
        )
    if len(shown) < len(ranks):
        yield f"               and {counted(len(ranks) - len(shown), 'rank')} more, all further or reading"


def _rate(value: float | None) -> str:
    """Return a rate with three digits, as people read them; a dash for none.

    >>> _rate(None), _rate(0.0), _rate(0.01234), _rate(3.21), _rate(12_345.6)
    ('-', '0', '0.0123', '3.2', '12,346')
    """
    if value is None:
        return "-"
    if value == 0:
        return "0"
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}" if value >= 1 else f"{value:.3g}"
