"""What each style of progress prints, to the letter, on a clock that the test moves."""

from __future__ import annotations

import io
import json

import pytest

from brimful.base import progress
from brimful.base.progress import make_progress
from brimful.errors import SettingsError


class _Clock:
    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch):
    made = _Clock()
    monkeypatch.setattr(progress, "time", made)
    return made


def _job(bar, clock):
    """1,000 rows: 400 from before, 300 after eleven seconds, the rest after twenty."""
    with bar.stage("measure", total=1000, unit="rows"):
        bar.advance(400, tokens=999, resumed=True)
        clock.now += 4
        bar.advance(100, tokens=1000)
        clock.now += 6
        bar.advance(200, tokens=2000)
        clock.now += 10
        bar.advance(300, tokens=1000)


def test_lines_are_seldom_and_end_with_the_seconds(clock):
    """Without it a log would fill with lines, or hide how much came from the cache."""
    out = io.StringIO()
    _job(make_progress("lines", out), clock)
    assert out.getvalue().splitlines() == [
        "measure: 700/1,000 rows (70 %), 30 rows/s, 300 tokens/s, 400 resumed, ETA 0:10",
        "measure: 1,000/1,000 rows (100 %), 30 rows/s, 200 tokens/s, 400 resumed, ETA 0:00",
        "measure: 1,000/1,000 rows (100 %), 30 rows/s, 200 tokens/s, 400 resumed, done in 20.0 s",
    ]


def test_json_is_one_object_a_line_with_these_keys(clock):
    """Without it a program that reads the progress would break on a renamed key."""
    out = io.StringIO()
    bar = make_progress("json", out)
    bar.say("hello")
    _job(bar, clock)
    told = {"event": "progress", "stage": "measure", "unit": "rows", "total": 1000, "resumed": 400}
    done = {**told, "done": 1000, "tokens": 4000, "per_second": 30.0, "tokens_per_second": 200.0, "eta_seconds": 0.0}
    assert [json.loads(line) for line in out.getvalue().splitlines()] == [
        {"event": "message", "text": "hello"},
        {
            **told,
            "done": 700,
            "tokens": 3000,
            "per_second": 30.0,
            "tokens_per_second": 300.0,
            "eta_seconds": 10.0,
            "seconds": 0.0,
        },
        {**done, "seconds": 0.0},
        {**done, "seconds": 20.0},
    ]


def test_json_has_no_infinity_before_the_first_fresh_row(clock):
    """Without it the line would hold Infinity, which JSON does not have."""
    out = io.StringIO()
    bar = make_progress("json", out)
    with bar.stage("measure", total=10, unit="rows"):
        clock.now += 10
        bar.advance(5, resumed=True)
        first = json.loads(out.getvalue(), parse_constant=pytest.fail)
    assert (first["done"], first["resumed"], first["per_second"], first["eta_seconds"]) == (5, 5, 0.0, None)


@pytest.mark.parametrize(
    ("left", "shown"), [(5.9, "0:05"), (65, "1:05"), (3 * 3600 + 62, "3:01:02"), (float("inf"), "?")]
)
def test_the_time_left_reads_as_a_clock(left, shown):
    """Without it an hour would read as 3600 seconds or as 60:00."""
    assert progress.clock(left) == shown


def test_json_rounds_its_numbers_and_knows_no_rest_without_work(clock):
    """Digits of a clock are noise; and an unknown rest has no number."""
    out = io.StringIO()
    bar = make_progress("json", out)
    with bar.stage("measure", total=3, unit="rows"):
        clock.now += 11.25
        bar.advance(1, resumed=True)
        clock.now += 0.87346
        bar.advance(1, tokens=100)
    with bar.stage("plan", total=1, unit="packs"):
        bar.advance(1)
        clock.now += 0.25
    names = ("eta_seconds", "per_second", "tokens_per_second", "seconds")
    assert [[json.loads(line)[name] for name in names] for line in out.getvalue().splitlines()] == [
        [None, 0.0, 0.0, 0.0],
        [12.1, 0.1, 8.2, 12.123],
        [0.0, 4.0, 0.0, 0.25],
    ]


def test_a_stage_without_rows_is_complete(clock):
    """Without it an empty stage would divide by zero."""
    out = io.StringIO()
    with make_progress("lines", out).stage("write", total=0, unit="packs"):
        clock.now += 1
    assert out.getvalue() == "write: 0/0 packs (100 %), 0 packs/s, done in 1.0 s\n"


def test_a_failed_stage_still_says_how_far_it_came(clock):
    """Without it a log would end without the place of the failure."""
    out = io.StringIO()
    bar = make_progress("lines", out)

    def fail():
        with bar.stage("measure", total=10, unit="rows"):
            bar.advance(2)
            clock.now += 2
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        fail()
    assert out.getvalue() == "measure: 2/10 rows (20 %), 1 rows/s, done in 2.0 s\n"


def test_the_silent_style_keeps_the_numbers(clock):
    """Without it a report could not say what a silent job cost."""
    bar = make_progress("none")
    _job(bar, clock)
    bar.say("nothing")
    record = bar.stages[0]
    assert (record.name, record.unit, record.total) == ("measure", "rows", 1000)
    assert (record.done, record.resumed, record.tokens, record.seconds) == (1000, 400, 4000, 20.0)


def test_auto_is_lines_where_there_is_no_terminal(clock):
    """Without it a Slurm log would be full of carriage returns."""
    out = io.StringIO()
    _job(make_progress("auto", out), clock)
    assert out.getvalue().count("\n") == 3
    assert "\r" not in out.getvalue()


def test_a_bar_moves_to_the_total_and_goes(clock):
    """Without it the bar could stop short, count rows of the cache twice, or tell another rate."""
    out = io.StringIO()
    bar = make_progress("bar", out)
    with bar.stage("measure", total=10, unit="rows"):
        bar.advance(4, resumed=True)
        bar.say("a line above the bar")
        clock.now += 2
        bar.advance(6, tokens=6_000_000)
        assert bar._bar.postfix == "3.00M tokens/s"  # type: ignore[attr-defined]
        assert (bar._bar.n, bar._bar.total, bar._bar.initial) == (10, 10, 4)  # type: ignore[attr-defined]
    assert "a line above the bar\n" in out.getvalue()


def test_an_unknown_style_names_the_known_ones():
    """Without it a typing error would end in an AttributeError."""
    with pytest.raises(SettingsError) as caught:
        make_progress("fancy")  # type: ignore[arg-type]
    assert str(caught.value) == "progress 'fancy' is unknown: use auto, bar, lines, json or none"
