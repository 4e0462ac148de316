"""Rows that another library encoded, and the pack of them that only keeps a rank in step."""

from typing import Any

from brimful.store.shards.pack import PlainPack


def test_the_same_tokens_without_loss():
    """What else its encoder made of a row, such as pixels, would count; the row that is served stays as it is."""
    rows: list[dict[str, Any]] = [
        {"input_ids": [1, 2], "labels": [1, 2], "attention_mask": [1, 1], "pixel_values": [0.5]},
        {"input_ids": [3], "labels": [3]},
    ]
    pack = PlainPack(rows, range(4, 6))
    filler = pack.without_loss()
    assert filler == [
        {"input_ids": [1, 2], "attention_mask": [1, 1], "labels": [-100, -100]},
        {"input_ids": [3], "labels": [-100]},
    ]
    assert (pack.sample_ids, filler.sample_ids) == ([4, 5], [-1, -1])
    assert pack[0]["labels"] == [1, 2]
