"""Small samples to verify with."""

import numpy as np
import pytest

pytest.importorskip("torch")

from brimful.media import MediaKind, Medium, PlacedMedium
from brimful.store.shards import assemble_pack
from brimful.testing.toys import toy_pack
from brimful.verify.drawn_samples import few_of, few_with_media


def test_few_of_packs_cuts_long_segments_so_that_others_fit():
    chosen = few_of([toy_pack([100, 3, 50]), toy_pack([2])], vocab=64, max_tokens=64)
    assert [pack.cu_seqlens.tolist() for pack in chosen] == [[0, 16, 19, 32], [0, 2]]
    assert max(pack.input_ids.max() for pack in chosen) < 64


def test_media_of_a_cut_sample_are_taken_along():
    """A part that begins at token 5 of its sample has its picture at token 6 of that sample."""
    picture = PlacedMedium(Medium(MediaKind.IMAGE, "a"), start=6, length=2, num_tokens=2)
    pack = assemble_pack(
        [np.arange(4, dtype=np.int32), np.arange(3, dtype=np.int32)],
        [np.ones(4, bool), np.ones(3, bool)],
        [7, 8],
        [5, 0],
        [[picture], []],
    )
    small = few_with_media([pack], max_tokens=100)
    assert [(len(item.media), item.sample_ids.tolist()) for item in small] == [(1, [7]), (0, [8])]
