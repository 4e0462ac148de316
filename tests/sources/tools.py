"""What tests of sources share: three rows, as a file has them, and the texts of a source."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeAlias

Put: TypeAlias = Callable[[str, bytes | str], str]
"""Type of the fixture ``put``: name and content of a file, and its path."""

ROWS = [{"text": "one"}, {"text": "two"}, {"text": "three"}]
JSONL = "".join(json.dumps(row) + "\n" for row in ROWS)


def texts(source: Any) -> list[Any]:
    return [sample.text for sample in source.read(0, len(source))]
