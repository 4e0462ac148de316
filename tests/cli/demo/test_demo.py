"""``brimful demo``: its result for machines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brimful.cli.demo import steps
from tests.cli.tools import one_json, outcome


def test_the_demo_gives_its_summary_as_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without it what the demo packed can only be read by people."""

    def quick(directory: str, say: Any, **options: Any) -> Any:
        say("a line for people")
        return {"packs": 3}

    monkeypatch.setattr(steps, "run_demo", quick)
    _, out, err = outcome("demo", "--json", "-o", tmp_path / "d")
    found = one_json(out)
    assert found == {"directory": str(tmp_path / "d"), "packs": 3}
    assert err.splitlines()[0] == "a line for people"
