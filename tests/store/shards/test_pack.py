"""One pack, and many as flat columns."""

from dataclasses import replace
from itertools import permutations
from typing import Any

import numpy as np
import pytest

from brimful.errors import CollateError
from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.store.shards import PackRows, assemble_pack
from brimful.testing.toys import toy_pack


def test_the_first_label_of_every_segment_is_ignored():
    """Its only predictor would be the last token of the sample before it."""
    assert toy_pack([3, 2, 1]).loss_mask.tolist() == [False, True, True, False, True, False]


def test_segments_are_taken_with_their_media():
    """Of a sample that was cut, media are where its part begins; media of other segments are left out."""
    media = [
        PlacedMedium(Medium(MediaKind.IMAGE, name), start=start, length=2, num_tokens=2)
        for name, start in (("a", 1), ("b", 6))
    ]
    ids, masks = [np.arange(4, dtype=np.int32), np.arange(3, dtype=np.int32)], [np.ones(4, bool), np.ones(3, bool)]
    pack = assemble_pack(ids, masks, [7, 8], [0, 5], [media[:1], media[1:]])
    assert [(item.start, item.segment) for item in pack.attachments] == [(1, 0), (5, 1)]
    assert pack.take([1, 0]) == assemble_pack(ids[::-1], masks[::-1], [8, 7], [5, 0], [media[1:], media[:1]])
    assert pack.take([1]).attachments == (replace(media[1], start=1),)


def test_any_segments_are_taken_in_any_order():
    """Three parts with a medium at each token, of samples that were cut: as if the others had never been there."""
    parts = []
    for sample, start, length in ((7, 0, 3), (8, 5, 6), (9, 2, 5)):
        media = [
            PlacedMedium(Medium(MediaKind.IMAGE, f"{sample}-{depth}"), start=start + depth, length=1, num_tokens=1)
            for depth in range(length)
        ]
        parts.append((np.arange(length, dtype=np.int32) + 10 * sample, np.ones(length, bool), sample, start, media))
    pack = assemble_pack(*zip(*parts, strict=True))
    for count in (1, 2, 3):
        for order in permutations(range(3), count):
            assert pack.take(order) == assemble_pack(*zip(*[parts[part] for part in order], strict=True))


def test_a_collator_that_asks_for_keys_is_named():
    """Without it TRL's own collator, where ours was forgotten, ends in ``'Pack' object is not subscriptable``."""
    pack = assemble_pack([np.arange(3, dtype=np.int32)], [np.ones(3, bool)], [0])
    with pytest.raises(CollateError, match=r"data_collator=PackCollator\(\)"):
        pack["input_ids"]


def test_what_other_collators_ask_a_pack(monkeypatch):
    """They look for keys, by ``vars`` or by ``in``: each ends with the way out, and not with an empty batch."""
    pack = toy_pack([3, 2])
    for ask in (lambda: vars(pack), lambda: "input_ids" in [pack], lambda: pack == "input_ids"):
        with pytest.raises(CollateError, match="packs came to a collator that does not support them"):
            ask()
    assert "input_ids" in dir(pack)


def test_packs_are_equal_by_their_values():
    pack = toy_pack([3, 2])
    assert pack == toy_pack([3, 2])
    assert pack != 3
    item = PlacedMedium(Medium(MediaKind.IMAGE, "a"), start=1, length=1, num_tokens=1)
    changes: dict[str, Any] = {
        "input_ids": pack.input_ids + 1,
        "loss_mask": ~pack.loss_mask,
        "cu_seqlens": np.array([0, 2, 5]),
    }
    changes |= {"sample_ids": np.array([0, 2]), "starts": np.array([0, 1]), "attachments": (item,)}
    for name, value in changes.items():
        other = replace(pack, **{name: value})
        assert other != pack, name
        assert pack != other, name


def test_parts_of_a_pack():
    pack = toy_pack([3, 2])
    assert (len(pack), pack.num_segments, pack.num_samples, pack.num_loss_tokens) == (5, 2, 2, 3)
    assert [pack.segment(index).tolist() for index in (0, 1)] == [
        pack.input_ids[:3].tolist(),
        pack.input_ids[3:].tolist(),
    ]
    assert pack.labels.tolist() == [-100, *pack.input_ids[1:3].tolist(), -100, int(pack.input_ids[4])]


def test_a_part_of_a_medium_is_refused_by_its_sample():
    """Of a cut sample: half a picture's placeholders would be trained on with no picture, or a wrong one."""
    media = [[], [PlacedMedium(Medium(MediaKind.IMAGE, "a"), start=1, length=2, num_tokens=2)]]
    ids, masks = [np.arange(2, dtype=np.int32)] * 2, [np.ones(2, bool)] * 2
    with pytest.raises(CollateError, match=r"sample 9: .*; drop samples that are too long"):
        assemble_pack(ids, masks, [7, 9], attachments=media)


def test_rows_are_flat_columns_of_packs():
    rows = PackRows(
        *(np.arange(6, dtype=np.int32), np.ones(6, bool), np.array([2, 1, 3], np.int32), np.array([4, 2, 1])),
        *(np.zeros(3, np.int32), np.array([0, 2, 3])),
    )
    assert (len(rows), rows.tokens.tolist()) == (2, [0, 3, 6])
    assert rows.loss_mask.tolist() == [False, True, False, False, True, True]
