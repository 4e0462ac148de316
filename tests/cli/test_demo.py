"""``brimful demo``: its result for machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.cli.tools import one_json, outcome


def test_the_demo_gives_its_comparison_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it what the demo measured can only be read by people."""
    demo = pytest.importorskip("brimful.demo")
    runs = (demo.TrainingRun("packed", [2.0, 1.0], 90, 100, 1.0), demo.TrainingRun("padded", [2.0, 1.0], 90, 180, 3.0))

    def quick(directory: str, say: Any, **options: Any) -> Any:
        say("a line for people")
        return runs

    monkeypatch.setattr(demo, "run_demo", quick)
    _, out, err = outcome("demo", "--json", "-o", tmp_path / "d")
    found = one_json(out)
    assert (found["directory"], found["packed"]["fill_ratio"], found["padded"]["tokens_per_second"]) == (
        str(tmp_path / "d"),
        0.9,
        30.0,
    )
    assert err.splitlines()[0] == "a line for people"
