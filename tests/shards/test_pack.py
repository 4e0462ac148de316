"""One pack, and many as flat columns."""

from dataclasses import replace

import numpy as np
import pytest

from brimful.errors import CollateError
from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.shards import assemble_pack
from brimful.testing.toys import toy_pack


def test_the_first_label_of_every_segment_is_ignored():
    """Its only predictor would be the last token of the sample before it."""
    assert toy_pack([3, 2, 1]).loss_mask.tolist() == [False, True, True, False, True, False]


def test_segments_are_taken_with_their_media():
    """Of a sample that was cut, media are where its part begins; those of other segments stay behind."""
    media = [
        PlacedMedium(Medium(MediaKind.IMAGE, name), start=start, length=2, num_tokens=2)
        for name, start in (("a", 1), ("b", 6))
    ]
    ids, masks = [np.arange(4, dtype=np.int32), np.arange(3, dtype=np.int32)], [np.ones(4, bool), np.ones(3, bool)]
    pack = assemble_pack(ids, masks, [7, 8], [0, 5], [media[:1], media[1:]])
    assert [(item.start, item.segment) for item in pack.media] == [(1, 0), (5, 1)]
    assert pack.take([1, 0]) == assemble_pack(ids[::-1], masks[::-1], [8, 7], [5, 0], [media[1:], media[:1]])
    assert pack.take([1]).media == (replace(media[1], start=1),)


def test_a_collator_that_asks_for_keys_is_named():
    """Without it TRL's own collator, where ours was forgotten, ends in ``'Pack' object is not subscriptable``."""
    pack = assemble_pack([np.arange(3, dtype=np.int32)], [np.ones(3, bool)], [0])
    with pytest.raises(CollateError, match=r"data_collator=PackCollator\(\)"):
        pack["input_ids"]
