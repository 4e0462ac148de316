"""LLaMA-Factory: the attention mask holds the number of the segment, and 0 at padding."""

import pytest

pytest.importorskip("torch")


from brimful import PackCollator
from brimful.testing.contracts import DialectContract
from tests.collate.dialects.reading import between, changes, count_labels, pack_with_image, pairs


class TestLlamaFactory(DialectContract):
    dialect = "llama_factory"
    knows_gaps = True

    def segments(self, batch):
        segments = []
        for ids, mask in zip(batch["input_ids"], batch["attention_mask"].tolist(), strict=True):
            edges = changes(mask)
            marked = zip(between(ids, edges), edges[:-1], strict=True)
            segments += [segment for segment, start in marked if mask[start]]
        return segments

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)


def test_the_segment_of_an_image_is_told():
    """LLaMA-Factory makes positions of pictures segment by segment."""
    batch = PackCollator(dialect="llama_factory", pad_to=8)([pack_with_image()])
    none = [2**32]
    owners = {"image_subseq_ids": [0], "video_subseq_ids": none, "audio_subseq_ids": none}
    assert batch["packing_params"] == [{"sequence_boundaries": [0, 4, 6, 9], "right_padding_length": 3, **owners}]
