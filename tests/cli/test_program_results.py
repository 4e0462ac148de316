"""Results on terminals: descriptions fit, and nothing is lost."""

from __future__ import annotations

import contextlib
import io

import numpy as np
import pytest

from brimful.base.wording import setting
from brimful.cli.program import folded, in_flags, show_lines
from brimful.measure import LengthTable
from brimful.plan import plan_packs
from brimful.report.analysis.facts import gather_facts
from brimful.report.analysis.training_run import TrainingRun
from brimful.report.analysis.what_if import compare_plans
from brimful.report.table_model import comparison_table
from brimful.report.text.report_lines import describe_facts, draw_table


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


@pytest.mark.parametrize("width", [60, 80])
def test_descriptions_fit_and_every_word_is_there(report: list[str], width: int) -> None:
    """Without it a terminal breaks a description in the middle of a number."""
    described = [line for line in report if line[:1].strip()]
    assert max(map(len, described)) > width, "nothing has to be folded"
    for line in described:
        shown = folded(line, width)
        assert max(map(len, shown.splitlines())) <= width
        assert shown.split() == line.split()


def test_rows_of_tables_stay_whole(report: list[str]) -> None:
    """Without it a fold moves cells under other columns."""
    rows = [line for line in report if line.startswith(" ")]
    assert len(rows) > 20
    assert [folded(row, 40) for row in rows] == rows


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_descriptions_are_folded_for_a_terminal_alone(report: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it a pipe would get folded lines."""
    monkeypatch.setenv("COLUMNS", "60")
    for stream, expected in ((Terminal(), [folded(line, 60) for line in report]), (io.StringIO(), report)):
        with contextlib.redirect_stdout(stream):
            show_lines(report)
        assert stream.getvalue().splitlines() == in_flags("\n".join(expected)).splitlines()


def test_settings_in_results_are_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """Without it a report on the command line names arguments of Python, or shows marks."""
    show_lines([f"variety        {setting('mix', True)} exchanges them"])
    assert capsys.readouterr().out == "variety        --mix exchanges them\n"
