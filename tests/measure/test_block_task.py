"""Tasks of blocks: their names, and the batches that are encoded together."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import BadSampleError
from brimful.measure import block_task
from brimful.measure.block_task import BlockTask, batches_of, num_characters
from brimful.media.measure import StatedRows
from brimful.sources.sample import Sample
from brimful.trees.prefix_search import _Window


@pytest.mark.parametrize(
    ("task", "name"),
    [
        (BlockTask(4096, 4100, "", None), "samples 4,096 to 4,099"),
        (StatedRows(4096, np.zeros(4, np.int64)), "media of samples 4,096 to 4,099"),
        (_Window(np.array([3, 4096, 5000]), None, None, ""), "prefixes of 3 samples from 3 to 5,000"),
    ],
)
def test_a_task_names_its_first_and_last_sample(task, name):
    """Without it a failed task sends its reader to rows that are in order."""
    assert str(task) == name


def test_media_count_as_some_text():
    """They open files: a batch of many would keep its thread for as long as one of much text."""
    parts = [{"type": "image"}, {"type": "text", "text": "12345678"}]
    turns: list[dict[str, Any]] = [{"content": "abc"}, {"content": parts}, {"content": None}, {"content": parts}]
    medium = block_task._ITEM_CHARACTERS
    assert num_characters(Sample(0, messages=turns)) == 3 + 2 * medium
    assert num_characters(Sample(0, messages=turns[:1])) == 3
    assert num_characters(Sample(0, messages=turns[1:2])) == medium
    assert num_characters(Sample(0, text="abcd")) == 4
    assert num_characters(Sample(0, input_ids=[1, 2])) == 0


@given(sizes=st.lists(st.none() | st.integers(0, 12), max_size=20), most=st.integers(1, 5))
def test_batches_are_full_and_bounded(sizes, most):
    """A batch ends with the sample that reaches a bound: larger ones take memory, smaller ones time."""
    rows = [
        BadSampleError("bad", sample_id=index) if size is None else Sample(index, text="x" * size)
        for index, size in enumerate(sizes)
    ]
    errors: list[BadSampleError] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(block_task, "_BATCH_SAMPLES", most)
        patch.setattr(block_task, "_BATCH_CHARACTERS", 20)
        batches = list(batches_of(rows, errors))
    assert [sample for batch in batches for sample in batch] == [row for row in rows if isinstance(row, Sample)]
    assert errors == [row for row in rows if not isinstance(row, Sample)]

    def is_full(batch):
        return len(batch) >= most or sum(len(sample.text) for sample in batch) >= 20

    assert all(batch and not is_full(batch[:-1]) for batch in batches)
    assert all(map(is_full, batches[:-1]))
