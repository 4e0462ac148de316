"""verl: each sample is a row of a jagged tensor; the loss rolls sample by sample."""

import pytest

torch = pytest.importorskip("torch")


from brimful.testing.contracts import DialectContract  # noqa: E402
from tests.collate.dialects.reading import pairs  # noqa: E402


class TestVerl(DialectContract):
    dialect = "verl"
    knows_gaps = True

    def segments(self, batch):
        return [row.tolist() for row in batch["input_ids"].unbind()]

    def targets(self, batch):
        found = []
        for ids, mask in zip(batch["input_ids"].unbind(), batch["loss_mask"].unbind(), strict=True):
            found += pairs(ids, torch.where(mask > 0, ids, -100), labels_shifted=False)
        return found

    def loss_tokens(self, batch):
        assert int((batch["loss_mask"].values() > 0).sum()) == batch["batch_num_tokens"]
        return batch["batch_num_tokens"]
