"""Megatron-Bridge before THD: boundaries in a row that is filled up, cut at its ``argmin``."""

import pytest

torch = pytest.importorskip("torch")


import numpy as np  # noqa: E402

from brimful import PackCollator  # noqa: E402
from brimful.collate import PackExtras  # noqa: E402
from brimful.errors import CollateError  # noqa: E402
from brimful.testing.contracts import DialectContract  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402
from tests.collate.dialects.reading import at_places, pairs  # noqa: E402


class TestMegatronBridgeLegacy(DialectContract):
    dialect = "megatron_bridge_legacy"
    knows_gaps = True

    def segments(self, batch):
        places = batch["cu_seqlens"][0, : batch["cu_seqlens_argmin"].item()]
        real = places
        if "cu_seqlens_unpadded" in batch:
            real = batch["cu_seqlens_unpadded"][0, : batch["cu_seqlens_unpadded_argmin"].item()]
        return at_places(batch["tokens"][0], places, real)

    def targets(self, batch):
        labels = torch.where(batch["loss_mask"] > 0, batch["labels"], -100)
        return pairs(batch["tokens"], labels, labels_shifted=True)

    def loss_tokens(self, batch):
        return int((batch["loss_mask"] > 0).sum())


def test_positions_of_mrope_are_refused_where_there_is_no_word_for_them():
    """Left out, pictures would get the positions of text."""
    extras = PackExtras(rope_positions=np.tile(np.arange(6), (3, 1)))
    with pytest.raises(CollateError, match=r"samples 0, 1… have mRoPE positions.*choose dialect=\"megatron_bridge\""):
        PackCollator(dialect="megatron_bridge_legacy")([(toy_pack([4, 2]), extras)])
