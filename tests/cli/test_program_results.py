"""Results: settings in them are flags."""

from __future__ import annotations

import pytest

from brimful.base.wording import setting
from brimful.cli.program import show


def test_settings_in_results_are_flags(capsys: pytest.CaptureFixture[str]) -> None:
    """Without it a report on the command line names arguments of Python, or shows marks."""
    show({}, lambda: [f"packs          {setting('min_fill', 0.5)} packs them again"], as_json=False)
    assert capsys.readouterr().out == "packs          --min-fill 0.5 packs them again\n"
