"""Progress reports of long jobs, as a bar, as lines or as JSON.

A job reports to a ``Progress``; the caller chooses which. On a terminal it is one bar with rates
and the remaining time; elsewhere (Slurm logs, pipes) a plain line every ten seconds; with
``--json`` one JSON object per line.

>>> bar = make_progress("none")
>>> with bar.stage("measure", total=10, unit="rows"):
...     bar.advance(10, tokens=2500)
"""

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal, TextIO, TypeAlias

from brimful.errors import SettingsError

ProgressStyle: TypeAlias = Literal["auto", "bar", "lines", "json", "none"]

_LINE_SECONDS = 10.0
"""Seconds between two lines of one stage."""


@dataclass
class StageRecord:
    """Counts of one stage so far: units done, tokens, seconds."""

    name: str
    total: int
    unit: str
    done: int = 0
    resumed: int = 0
    tokens: int = 0
    started: float = field(default_factory=lambda: time.monotonic())
    seconds: float = 0.0

    def rates(self) -> tuple[float, float, float]:
        """Return units per second, tokens per second, and remaining seconds, without units resumed
        from a cache.
        """
        seconds = max(time.monotonic() - self.started, 1e-9)
        rate = (self.done - self.resumed) / seconds
        remaining_seconds = (self.total - self.done) / rate if rate > 0 else float("inf")
        return rate, self.tokens / seconds, remaining_seconds


class Progress:
    """A reporter that stays silent; the styles that print derive from it."""

    def __init__(self) -> None:
        self.stages: list[StageRecord] = []

    @contextlib.contextmanager
    def stage(self, name: str, *, total: int, unit: str) -> Iterator[None]:
        """Report the block as one stage of the job; its seconds stay in ``stages``."""
        record = StageRecord(name, total, unit)
        self.stages.append(record)
        self._opened(record)
        try:
            yield
        finally:
            record.seconds = time.monotonic() - record.started
            self._closed(record)

    def advance(self, amount: int, *, tokens: int = 0, resumed: bool = False) -> None:
        """Report that ``amount`` more units are done; ``resumed`` ones came from a cache and cost
        no work.
        """
        record = self.stages[-1]
        record.done += amount
        # Tokens of resumed units do not count: the rates describe the work of this run.
        if resumed:
            record.resumed += amount
        else:
            record.tokens += tokens
        self._advanced(record)

    def say(self, text: str) -> None:
        """Show a line to the user."""

    def _opened(self, record: StageRecord) -> None: ...

    def _advanced(self, record: StageRecord) -> None: ...

    def _closed(self, record: StageRecord) -> None: ...


class _Lines(Progress):
    """A line at most every ten seconds, for logs."""

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream
        self._last = 0.0

    def say(self, text: str) -> None:
        print(text, file=self._stream, flush=True)

    def _opened(self, record: StageRecord) -> None:
        self._last = time.monotonic()

    def _advanced(self, record: StageRecord) -> None:
        if time.monotonic() - self._last >= _LINE_SECONDS:
            self._last = time.monotonic()
            self._show(record)

    def _closed(self, record: StageRecord) -> None:
        self._show(record)

    def _show(self, record: StageRecord) -> None:
        rate, token_rate, remaining_seconds = record.rates()
        share = 100 * record.done / record.total if record.total else 100.0
        speed = f"{rate:,.0f} {record.unit}/s" + (
            f", {token_rate:,.0f} tokens/s" if record.tokens else ""
        )
        resumed_text = f", {record.resumed:,} resumed" if record.resumed else ""
        end = (
            f"done in {record.seconds:.1f} s"
            if record.seconds
            else f"ETA {clock(remaining_seconds)}"
        )
        self.say(
            f"{record.name}: {record.done:,}/{record.total:,} {record.unit} ({share:.0f} %), "
            f"{speed}{resumed_text}, {end}"
        )


class _Json(_Lines):
    """One JSON object per line, for programs."""

    def say(self, text: str) -> None:
        super().say(json.dumps({"event": "message", "text": text}))

    def _show(self, record: StageRecord) -> None:
        rate, token_rate, remaining_seconds = record.rates()
        event: dict[str, Any] = {
            "event": "progress",
            "stage": record.name,
            **{
                name: getattr(record, name)
                for name in ("unit", "done", "total", "resumed", "tokens")
            },
            "per_second": round(rate, 1),
            "tokens_per_second": round(token_rate, 1),
            "eta_seconds": None
            if remaining_seconds == float("inf")
            else round(remaining_seconds, 1),
            "seconds": round(record.seconds, 3),
        }
        super().say(json.dumps(event))


class _Bar(_Lines):
    """One moving bar on a terminal."""

    _bar: Any = None

    def say(self, text: str) -> None:
        if self._bar is not None:
            self._bar.write(text, file=self._stream)
        else:
            super().say(text)

    def _opened(self, record: StageRecord) -> None:
        from tqdm import tqdm

        self._bar = tqdm(
            total=record.total,
            unit=f" {record.unit}",
            unit_scale=True,
            desc=record.name,
            file=self._stream,
            dynamic_ncols=True,
            leave=False,
        )

    def _advanced(self, record: StageRecord) -> None:
        if record.resumed and self._bar.initial != record.resumed:
            # tqdm leaves ``initial`` out of its rate, so that rate and ETA come from the work of
            # this run.
            self._bar.initial = record.resumed
        if record.tokens:
            self._bar.set_postfix_str(f"{record.rates()[1] / 1e6:.2f}M tokens/s", refresh=False)
        self._bar.update(record.done - self._bar.n)

    def _closed(self, record: StageRecord) -> None:
        self._bar.close()
        self._bar = None


_STYLES: dict[str, Callable[[TextIO], Progress]] = {
    "bar": _Bar,
    "lines": _Lines,
    "json": _Json,
    "none": lambda _: Progress(),
}


def make_progress(style: ProgressStyle, stream: TextIO | None = None) -> Progress:
    """Return the reporter of a style; ``auto`` is a bar on a terminal and lines elsewhere."""
    output = stream if stream is not None else sys.stderr
    name = ("bar" if output.isatty() else "lines") if style == "auto" else style
    if name not in _STYLES:
        raise SettingsError(f"progress {style!r} is unknown: use auto, bar, lines, json or none")
    return _STYLES[name](output)


def clock(seconds: float) -> str:
    """Return a duration in the format of a clock.

    >>> clock(75), clock(3661.5), clock(float("inf"))
    ('1:15', '1:01:01', '?')
    """
    if seconds == float("inf"):
        return "?"
    minutes, remainder = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{remainder:02d}" if hours else f"{minutes}:{remainder:02d}"
