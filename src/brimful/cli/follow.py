"""``brimful inspect STREAM --every 10``: repeated status of a stream."""

import sys
import time
from itertools import count

import click

from brimful.base.atomic_file import atomic_file
from brimful.base.checks import is_number
from brimful.base.wording import setting
from brimful.cli.flags import in_flags
from brimful.cli.terminal import show_json
from brimful.errors import CorruptFileError, SettingsError, StoreError
from brimful.report.analysis.stream_watch import StreamWatch
from brimful.report.text.prometheus import prometheus_text
from brimful.report.text.stream_lines import stream_line


def follow(stream: str, every: float | None, updates: int | None, prometheus_file: str | None, as_json: bool) -> None:
    """Show a line for each update of a stream's status.

    Args:
        stream: path or URL.
        every: seconds between two updates; None for a single one.
        updates: number of updates; None continues until stopped.
        prometheus_file: replaced at each update by the numbers in Prometheus' text format.
        as_json: show a line of JSON.

    Raises:
        SettingsError: impossible numbers.
    """
    if every is not None and not (is_number(every) and every > 0):
        raise SettingsError(f"{setting('every')} must be a number of seconds above 0 and is {every!r}")
    if updates is not None and (updates < 1 or every is None):
        raise SettingsError(f"{setting('updates', updates)} counts the updates of {setting('every')}: at least 1")
    watch = StreamWatch(stream)
    for number in count(1):
        begin = time.monotonic()
        try:
            status = watch.look()
            if prometheus_file is not None:
                with atomic_file(prometheus_file) as file:
                    file.write(prometheus_text(status).encode())
        except CorruptFileError:
            raise
        except (OSError, StoreError) as error:
            if every is None:
                raise
            # A watch may run for weeks: it continues if the network is down for a minute or a disk is full.
            click.echo(f"warning: {in_flags(getattr(error, 'message', str(error)))}", err=True)
        else:
            if as_json:
                show_json(status.as_dict())
            else:
                click.echo(f"{time.strftime('%H:%M:%S')} {in_flags(stream_line(status))}")
            sys.stdout.flush()
        if every is None or number == updates:
            return
        time.sleep(max(0.0, begin + every - time.monotonic()))
