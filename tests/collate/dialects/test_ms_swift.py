"""ms-swift: flash attention cuts at ``cu_seq_lens_q``; the model shifts the labels."""

import pytest

pytest.importorskip("torch")


from brimful import PackCollator
from brimful.testing.contracts import DialectContract
from tests.collate.dialects.reading import between, count_labels, pack_with_image, pairs


class TestMsSwift(DialectContract):
    dialect = "ms_swift"

    def segments(self, batch):
        return between(batch["input_ids"][0], batch["cu_seq_lens_q"].tolist())

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)


def test_text_positions_have_a_key_of_their_own():
    """ms-swift looks for boundaries there if the model has mRoPE."""
    batch = PackCollator(dialect="ms_swift", pad_to=8)([pack_with_image()])
    assert batch["text_position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 0, 1]]
