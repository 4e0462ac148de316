"""NeMo Automodel: rows with lists of lengths, where -1000 is none; labels are shifted."""

from itertools import accumulate

import pytest

pytest.importorskip("torch")


from brimful.testing.contracts import DialectContract
from tests.collate.dialects.reading import count_labels, pairs


class TestNemoAutomodel(DialectContract):
    dialect = "nemo_automodel"
    knows_gaps = True

    def segments(self, batch):
        segments = []
        for ids, lengths, padded in zip(batch["input_ids"], batch["seq_lens"], batch["seq_lens_padded"], strict=True):
            starts = accumulate(padded.tolist(), initial=0)
            pairs_of_row = zip(starts, lengths.tolist(), strict=False)
            segments += [ids[start : start + length].tolist() for start, length in pairs_of_row if length > 0]
        return segments

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=True)

    def loss_tokens(self, batch):
        return count_labels(batch)
