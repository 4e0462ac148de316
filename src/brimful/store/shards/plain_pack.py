"""Pack of samples that another library encoded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from brimful.base.typing import IGNORE_INDEX


class PlainPack(list[Mapping[str, Any]]):
    """Rows of a data set in one sequence, each with ``input_ids`` and further outputs of its encoder: labels, pixels.

    ``PackCollator`` joins them; so do other collators that take a list of rows.

    Attributes:
        sample_ids: of the rows, as in sources and messages.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], sample_ids: Sequence[int]) -> None:
        super().__init__(rows)
        self.sample_ids = list(sample_ids)

    def without_loss(self) -> PlainPack:
        """Return the same tokens without targets, media and samples: every id is -1."""
        names = ("input_ids", "attention_mask")
        rows: list[dict[str, Any]] = [{name: row[name] for name in names if name in row} for row in self]
        for row in rows:
            row["labels"] = [IGNORE_INDEX] * len(row["input_ids"])
        return PlainPack(rows, [-1] * len(rows))
