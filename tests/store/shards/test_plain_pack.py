"""Rows that another library encoded, and the pack of them that only keeps a rank in step."""

from typing import Any

import numpy as np
import pytest

from brimful.base.typing import TARGET_MASKS
from brimful.serve.tokenized import read_tokenized
from brimful.store.shards.pack import PlainPack


def test_the_same_rows_without_loss():
    """Pixels and weights too: other ranks run their tower, and read their weights. The row that is served stays as it is."""
    rows: list[dict[str, Any]] = [
        {
            "input_ids": [1, 2],
            "labels": [1, 2],
            "attention_mask": [1, 1],
            "pixel_values": [0.5],
            "loss_weights": [1, 2],
        },
        {"input_ids": [3], "labels": [3]},
    ]
    pack = PlainPack(rows, range(4, 6))
    filler = pack.without_loss()
    assert filler == [{**rows[0], "labels": [-100, -100]}, {"input_ids": [3], "labels": [-100]}]
    assert (pack.sample_ids, filler.sample_ids) == ([4, 5], [-1, -1])
    assert pack[0]["labels"] == [1, 2]


@pytest.mark.parametrize("key", ["labels", *TARGET_MASKS, None])
def test_no_target_is_left_however_a_row_names_them(key):
    """Labels, one of the masks, or nothing, which makes a target of every token."""
    targets = {None: {}, "labels": {"labels": [-100, 6, 7]}}.get(key, {key: [0, 1, 1]})
    row = {"input_ids": [5, 6, 7], **targets}
    (empty,) = PlainPack([row], [0]).without_loss()
    assert read_tokenized(row, "a row").loss_mask.any()
    assert not read_tokenized(empty, "a row").loss_mask.any()


@pytest.mark.parametrize("form", ["list", "array", "tensor"])
def test_labels_have_the_form_of_the_row(form):
    """A collator of lists adds them, one of tensors concatenates them."""
    ids: Any = np.array([5, 6], dtype=np.uint16)
    if form == "tensor":
        ids = pytest.importorskip("torch").tensor([5, 6])
    ids = ids.tolist() if form == "list" else ids
    for row in ({"input_ids": ids, "labels": ids}, {"input_ids": ids}):
        (empty,) = PlainPack([row], [0]).without_loss()
        assert type(empty["labels"]) is type(ids)
        assert [*map(int, empty["labels"])] == [-100, -100]
