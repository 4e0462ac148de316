"""Results: settings in them are flags."""

from __future__ import annotations

import pytest

from brimful.base.wording import setting
from brimful.cli.program import show


def test_settings_in_results_are_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """Without it a report on the command line names arguments of Python, or shows marks."""
    show({}, lambda: [f"variety        {setting('mix', True)} exchanges them"], as_json=False)
    assert capsys.readouterr().out == "variety        --mix exchanges them\n"
