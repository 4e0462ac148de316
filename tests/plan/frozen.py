"""Plans that stay as they are: fingerprints in ``tests/golden``, held in both forms of compiled loops."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from brimful.base.compiling import compiled_forms

GOLDEN = Path(__file__).parents[1] / "golden"


def assert_frozen(file: str, name: str, make: Callable[[], Any]) -> None:
    """Make a plan compiled and not; its fingerprint must be the one that a file in ``tests/golden`` has by its name."""
    expected = json.loads((GOLDEN / file).read_text(encoding="utf-8"))
    for is_compiled in (True, False):
        if is_compiled:
            pytest.importorskip("numba")
        with compiled_forms(is_compiled):
            assert make().fingerprint == expected[name], f"compiled: {is_compiled}"


def show(cases: Mapping[str, Callable[[], Any]]) -> None:
    """Print the content of such a file."""
    print(json.dumps({name: make().fingerprint for name, make in cases.items()}, indent=1))
