"""OLMo-core 3: rows with lists of lengths, where 0 is none, and a mask of targets; it makes the labels itself."""

from itertools import accumulate

import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.errors import CollateError  # noqa: E402
from brimful.testing.contracts import DialectContract  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402
from tests.collate.dialects.reading import pack_with_image, pairs  # noqa: E402


class TestOlmoCore(DialectContract):
    dialect = "olmo_core"

    def segments(self, batch):
        return [
            ids[end - length : end].tolist()
            for ids, lengths in zip(batch["input_ids"], batch["doc_lens"].tolist(), strict=True)
            for length, end in zip(lengths, accumulate(lengths), strict=True)
            if length
        ]

    def targets(self, batch):
        return pairs(
            batch["input_ids"], batch["input_ids"].masked_fill(~batch["label_mask"], -100), labels_shifted=False
        )

    def loss_tokens(self, batch):
        return int(batch["label_mask"][:, 1:].sum())


def test_rows_are_whole_documents_with_a_filler_of_zero():
    """What its attention adds up: the lengths of a row are all its places, the padding too."""
    given = PackCollator(dialect="olmo_core", pad_to=8)([toy_pack([3, 2]), toy_pack([8])])
    assert given["doc_lens"].tolist() == [[3, 2, 3], [8, 0, 0]]
    assert given["max_doc_lens"] == [3, 8]
    assert given["label_mask"].int().tolist() == [[0, 1, 1, 0, 1, 0, 0, 0], [0, *[1] * 7]]


def test_what_it_does_not_read_is_refused():
    """Left in, its model would fail at a name; left out, the loss and the positions would be others."""
    with pytest.raises(CollateError, match="row with sample 0 has weights of the loss, which OLMo-core does not"):
        PackCollator(dialect="olmo_core", loss_weights="sample")([toy_pack([3, 2])])
    with pytest.raises(CollateError, match="positions of media"):
        PackCollator(dialect="olmo_core")([pack_with_image()])
