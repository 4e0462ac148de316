"""Plans that stay as they are: fingerprints in ``tests/golden``, held in both forms of compiled loops."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from brimful.base.compiling import compiled_forms
from brimful.errors import BrimfulError

GOLDEN = Path(__file__).parents[1] / "golden"


def assert_frozen(file: str, name: str, make: Callable[[], Any]) -> None:
    """Make a plan compiled and not; its fingerprint must be the one that a file in ``tests/golden`` has by its name."""
    expected = json.loads((GOLDEN / file).read_text(encoding="utf-8"))
    for is_compiled in (True, False):
        if is_compiled:
            pytest.importorskip("numba")
        with compiled_forms(is_compiled):
            assert make().fingerprint == expected[name], f"compiled: {is_compiled}"


class Chance:
    """Random choices of one case."""

    def __init__(self, seed: int) -> None:
        self.generator = np.random.default_rng(seed)

    def of(self, *values: Any) -> Any:
        return values[self.number(len(values))]

    def number(self, least: int, stop: int | None = None) -> int:
        return int(self.generator.integers(least, stop))

    def numbers(self, least: int, stop: int, count: int) -> Any:
        return self.generator.integers(least, stop, count)


def digest_of(make: Callable[[Chance], Any], count: int, *, most_refused: float = 0.5) -> str:
    """Hash what a function makes of a number of random cases, as JSON; of a refusal its type and its numbers."""
    digest, num_refused = hashlib.sha256(), 0
    for seed in range(count):
        try:
            outcome = make(Chance(seed))
        except BrimfulError as error:
            outcome = [type(error).__name__, re.findall(r"\d+", str(error))]
            num_refused += 1
        digest.update(json.dumps(outcome).encode())
    assert num_refused < most_refused * count
    return digest.hexdigest()[:16]


def show(cases: Mapping[str, Callable[[], Any]]) -> None:
    """Print the content of such a file."""
    print(json.dumps({name: make().fingerprint for name, make in cases.items()}, indent=1))
