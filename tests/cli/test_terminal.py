"""Summaries and tables on narrow terminals: nothing is lost, and no line is wider than the terminal."""

from __future__ import annotations

import contextlib
import io
import re
from collections import Counter

import numpy as np
import pytest

from brimful.base.wording import setting
from brimful.cli.terminal import fitted, show_lines
from brimful.measure import LengthTable
from brimful.plan import plan_packs
from brimful.report.analysis.facts import gather_facts
from brimful.report.analysis.training_run import TrainingRun
from brimful.report.analysis.what_if import compare_plans
from brimful.report.table_model import comparison_table
from brimful.report.text.report_lines import describe_facts, draw_table

WIDTHS = (60, 80)


@pytest.fixture(scope="module")
def report() -> list[str]:
    """What plan --what-if and report print, with all its tables."""
    table = LengthTable.from_lengths([30, 400, 900, 1500, 60, 700] * 50)
    plan = plan_packs(table, capacity=1024, overflow="truncate")
    run = TrainingRun(dp_world_size=8, micro_batch_size=4, gradient_accumulation_steps=2)
    facts = gather_facts(
        "x", table=table, plan=plan, run=run, sources=(np.arange(300) % 2, ["chats", "books of long names"])
    )
    comparison = comparison_table(compare_plans(table, plan, capacities=[], packs_per_step=8))
    return [*describe_facts(facts), "", *draw_table(comparison)]


def words(lines: list[str]) -> Counter[str]:
    return Counter(word for line in lines for word in line.split() if not set(word) <= {"█"})


@pytest.mark.parametrize("width", WIDTHS)
def test_every_line_fits_and_every_word_is_there(report: list[str], width: int) -> None:
    """Without it a terminal breaks tables in the middle of numbers, or a fold loses a column."""
    assert max(map(len, report)) > width, "nothing has to be folded"
    shown = list(fitted(report, width))
    assert max(map(len, shown)) <= width
    assert words(report) - words(shown) == Counter()


def test_lines_that_fit_stay_as_they_are(report: list[str]) -> None:
    """Without it a wide terminal shows something else than a file."""
    width = max(map(len, report))
    tables = [line for line in report if re.match(r" {1,14}\d", line)]
    assert [line for line in fitted(report, width) if re.match(r" {1,14}\d", line)] == tables


def test_a_table_is_cut_into_tables_with_the_first_columns() -> None:
    """Without it rows of the second table could not be told apart."""
    table = [
        " capacity  algorithm   packs     fill",
        "      512  next_fit      259  79.47 %",
        "    1,024  auto          144  99.76 %  ← this plan",
    ]
    assert list(fitted(table, 40)) == [
        " capacity  algorithm  packs     fill",
        "      512  next_fit     259  79.47 %",
        "    1,024  auto         144  99.76 %",
        "    ← this plan",
    ]
    assert list(fitted(table, 30)) == [
        " capacity  algorithm  packs",
        "      512  next_fit     259",
        "    1,024  auto         144",
        "    ← this plan",
        "",
        " capacity  algorithm     fill",
        "      512  next_fit   79.47 %",
        "    1,024  auto       99.76 %",
    ]


def test_text_behind_a_label_is_folded_below_itself_and_anew() -> None:
    """Without it a fold for 110 columns is folded once more at 80, into ragged lines."""
    note = ["same samples   one two three four five", "               six seven"]
    assert list(fitted(note, 33)) == ["same samples   one two three four", "               five six seven"]
    assert list(fitted(note, 80)) == ["same samples   one two three four five six seven"]


def test_bars_keep_their_proportion() -> None:
    """Without it the longest bars of a histogram all end at the edge and look alike."""
    rows = ["  1 … 3   89  2.5 %  " + "█" * 40, "  4 … 7   45  6.2 %  " + "█" * 20]
    assert [line.count("█") for line in fitted(rows, 40)] == [20, 10]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_results_fit_a_terminal_and_stay_whole_in_a_file(report: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a pipe would get folded lines, or a terminal lines that it breaks itself."""
    monkeypatch.setenv("COLUMNS", "60")
    for stream, most in ((Terminal(), 60), (io.StringIO(), max(map(len, report)))):
        with contextlib.redirect_stdout(stream):
            show_lines(report)
        assert max(map(len, stream.getvalue().splitlines())) == most


def test_settings_in_results_are_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """Without it a report on the command line names arguments of Python, or shows marks."""
    show_lines([f"variety        {setting('mix', True)} exchanges them"])
    assert capsys.readouterr().out == "variety        --mix exchanges them\n"
