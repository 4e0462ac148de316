"""Megatron-Bridge: places from the padded boundaries if packs have gaps, lengths from the others."""

import pytest

torch = pytest.importorskip("torch")


from brimful import PackCollator  # noqa: E402
from brimful.collate import Padding  # noqa: E402
from brimful.testing.contracts import DialectContract  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402
from tests.collate.dialects.reading import at_places, count_labels, pairs  # noqa: E402


class TestMegatronBridge(DialectContract):
    dialect = "megatron_bridge"
    knows_gaps = True

    def segments(self, batch):
        real = batch["cu_seqlens_q"]
        return at_places(batch["input_ids"][0], batch.get("cu_seqlens_q_padded", real), real)

    def targets(self, batch):
        labels = torch.where(batch["loss_mask"] > 0, batch["labels"], -100)
        return pairs(batch["input_ids"], labels, labels_shifted=True)

    def loss_tokens(self, batch):
        return count_labels(batch)


@pytest.mark.parametrize("padding", [Padding(), Padding(to=16), Padding(to=24, segment_multiple_of=4)])
def test_no_segment_of_megatron_bridge_is_empty(padding):
    """Where Bridge makes positions of pictures it refuses a segment without tokens, and reads each from its own start."""
    given = PackCollator(dialect="megatron_bridge", padding=padding)([toy_pack([4, 2, 3])])
    real, where = given["cu_seqlens_q"], given.get("cu_seqlens_q_padded", given["cu_seqlens_q"])
    lengths = real.diff()
    assert lengths.tolist()[:3] == [4, 2, 3]
    assert bool((lengths > 0).all())
    assert bool((where[:-1] + lengths <= where[1:]).all())
    tail = given["input_ids"][0, int(where[3]) :]
    assert sum(lengths.tolist()[3:]) == len(tail)
