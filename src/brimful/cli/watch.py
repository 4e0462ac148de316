"""``brimful watch``: how far a stream and those that train on it are, again and again."""

import os
import sys
import time
from itertools import count

import click

from brimful.blobs.atomic_file import atomic_file
from brimful.checks import is_number
from brimful.cli.command import GroupedCommand, grouped, value_option
from brimful.cli.flags import in_flags
from brimful.cli.metrics_server import MetricsServer, address_of
from brimful.cli.options import json_option
from brimful.cli.screen import Screen, is_screen
from brimful.cli.terminal import show_json
from brimful.errors import CorruptFileError, SettingsError, StoreError
from brimful.messages import setting
from brimful.report.analysis.stream_status import StreamStatus
from brimful.report.analysis.stream_watch import StreamWatch
from brimful.report.text.prometheus import prometheus_text
from brimful.report.text.stream import describe_stream, stream_line

_SCREEN_SECONDS, _LINE_SECONDS = 2.0, 10.0
"""Seconds between two looks, for a person before a screen and for a log."""


@click.command(cls=GroupedCommand)
@click.argument("stream")
@grouped(
    "How to show it",
    value_option("--every", "SECONDS", "Seconds between two looks (default: 2 on a terminal, else 10).", type=float),
    value_option("--updates", "N", "End after N looks (default: go on until stopped).", type=int),
)
@grouped(
    "For collectors of metrics",
    value_option(
        "--prometheus", "[HOST:]PORT", "Serve the numbers over HTTP, at /metrics; on this machine alone if no HOST."
    ),
    value_option(
        "--prometheus-file", "FILE", "Keep the numbers in a file, for the textfile collector of node-exporter."
    ),
)
@json_option
def watch(
    stream: str,
    every: float | None,
    updates: int | None,
    prometheus: str | None,
    prometheus_file: str | None,
    as_json: bool,
) -> None:
    """Watch STREAM: what is produced, how far each rank is, who waits and who is silent.

    STREAM is the directory or URL of a stream. On a terminal one picture is painted again in place; elsewhere each look is
    a line. Watching takes nothing from those who produce and train; `brimful inspect STREAM` looks once.
    """
    if every is not None and not (is_number(every) and every > 0):
        raise SettingsError(f"{setting('every')} must be a number of seconds above 0 and is {every!r}")
    if updates is not None and updates < 1:
        raise SettingsError(f"{setting('updates')} must be at least 1 and is {updates}")
    observer = StreamWatch(stream)
    server = None
    if prometheus is not None:
        server = MetricsServer(*address_of(prometheus))
        click.echo(f"metrics at {server.url}", err=True)
    has_screen = not as_json and is_screen(sys.stdout, os.environ.get("TERM", ""))
    screen = Screen() if has_screen else None
    seconds = every or (_SCREEN_SECONDS if has_screen else _LINE_SECONDS)
    status: StreamStatus | None = None
    try:
        for number in count(1):
            begin = time.monotonic()
            problem = ""
            try:
                status = observer.look()
                if prometheus_file is not None:
                    with atomic_file(prometheus_file) as file:
                        file.write(prometheus_text(status).encode())
            except CorruptFileError:
                raise
            except (OSError, StoreError) as error:
                # A network that is gone for a minute, or a full disk: who watches for days goes on.
                problem = in_flags(getattr(error, "message", str(error)))
            if server is not None and status is not None:
                server.text = prometheus_text(status, is_current=not problem)
            _show(status, problem, screen, as_json)
            if number == updates:
                break
            time.sleep(max(0.0, begin + seconds - time.monotonic()))
    finally:
        if screen is not None:
            screen.close()
        if server is not None:
            server.close()


def _show(status: StreamStatus | None, problem: str, screen: Screen | None, as_json: bool) -> None:
    """Show one look: a picture, a line of JSON, or a line with the time."""
    if screen is not None:
        lines = [] if status is None else describe_stream(status, num_lines=screen.num_lines)
        screen.paint([*lines, *([f"warning        {problem}"] if problem else [])])
        return
    if problem:
        click.echo(f"warning: {problem}", err=True)
    elif status is not None and as_json:
        show_json(status.as_dict())
    elif status is not None:
        click.echo(f"{time.strftime('%H:%M:%S')} {in_flags(stream_line(status))}")
    sys.stdout.flush()
