"""Unsloth: lengths that cover the row, and agree with the boundaries for models of Transformers."""

import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.collate import Padding  # noqa: E402
from brimful.testing.contracts import DialectContract  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402
from tests.collate.dialects.reading import between, count_labels, pairs  # noqa: E402


class TestUnsloth(DialectContract):
    dialect = "unsloth"

    def segments(self, batch):
        edges = [0, *torch.cumsum(batch["packed_seq_lengths"], 0).tolist()]
        assert batch["cu_seq_lens_q"].tolist() == edges
        assert edges[-1] == batch["input_ids"].shape[1], "Unsloth's masks are as wide as the lengths sum to"
        return between(batch["input_ids"][0], edges)

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)


def test_a_fixed_number_of_segments():
    """Unsloth skips empty segments; the padding stays one segment."""
    padding = Padding(to=10, num_segments=5)
    batch = PackCollator(dialect="unsloth", padding=padding)([toy_pack([3, 2])])
    assert batch["packed_seq_lengths"].tolist() == [3, 2, 5, 0, 0]
