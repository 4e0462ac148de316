"""Rows that are tokenized already."""

from __future__ import annotations

from typing import Any

import pytest

from brimful.sources import Sample, open_source

TOKENS = {
    "all are targets": ({"input_ids": [5, 6]}, [5, 6], [-100, 6]),
    "labels": ({"input_ids": [5, 6, 7], "labels": [-100, -100, 7]}, [5, 6, 7], [-100, -100, 7]),
    "a mask": ({"input_ids": [5, 6], "completion_mask": [0, 1]}, [5, 6], [-100, 6]),
    "padding behind": ({"input_ids": [5, 6, 0], "attention_mask": [1, 1, 0]}, [5, 6], [-100, 6]),
    "padding before": (
        {"input_ids": [0, 5, 6], "labels": [-100, -100, 6], "attention_mask": [0, 1, 1]},
        [5, 6],
        [-100, 6],
    ),
    "positions": ({"input_ids": [5, 6], "position_ids": [0, 1]}, [5, 6], [-100, 6]),
}


@pytest.mark.parametrize("name", TOKENS)
def test_rows_of_tokens_are_taken_as_they_are(name: str) -> None:
    """Without it what was tokenized with care would have to be tokenized again."""
    row, ids, labels = TOKENS[name]
    source = open_source([row])
    assert (source.format_name, source[0]) == ("tokens", Sample(0, input_ids=ids, labels=labels))


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"input_ids": []}, "'input_ids' of shape (0,)"),
        ({"input_ids": [1, -1]}, "-1 in 'input_ids', which is not a token id"),
        ({"input_ids": [1, 2**31]}, "2147483648 in 'input_ids' at token 1, which no vocabulary has"),
        ({"input_ids": "text"}, "'input_ids' of <U4, which must hold whole numbers"),
        ({"input_ids": [1.5]}, "'input_ids' of float64, which must hold whole numbers"),
        ({"input_ids": [1, 2], "labels": [2]}, "'input_ids' (2,) and 'labels' (1,): they must be rows of one length"),
        ({"input_ids": [1, 2], "labels": [2, -100]}, "a label that is not its own token; labels must not be shifted"),
        ({"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]}, "an 'attention_mask' with zeros within a sample"),
        ({"input_ids": [1], "attention_mask": [0]}, "an 'attention_mask' of only zeros"),
        ({"input_ids": [1, 2], "attention_mask": [1, 2]}, "is already a pack of 2 samples: give one sample a row"),
        ({"input_ids": [1, 2], "position_ids": [0, 0]}, "is already a pack of 2 samples: give one sample a row"),
    ],
)
def test_rows_of_tokens_that_contradict_themselves_are_refused(row: Any, reason: str) -> None:
    """Without it shifted labels and packed rows would be trained on as they are."""
    (error,) = open_source([row]).read(0, 1)
    assert str(error).startswith("memory[0] (sample 0): the row ")
    assert reason in str(error)
