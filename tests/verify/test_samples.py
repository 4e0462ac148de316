"""Small samples to verify with."""

import pytest

pytest.importorskip("torch")

from brimful.testing.toys import toy_pack
from brimful.verify.samples import few_of


def test_few_of_packs_cuts_long_segments_so_that_others_fit():
    chosen = few_of([toy_pack([100, 3, 50]), toy_pack([2])], vocab=64, max_tokens=64)
    assert [pack.cu_seqlens.tolist() for pack in chosen] == [[0, 16, 19, 32], [0, 2]]
    assert max(pack.input_ids.max() for pack in chosen) < 64
