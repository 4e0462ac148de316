"""Megatron-Core: rows of one dimension, places from the padded boundaries, lengths from the real ones; the loss mask counts."""

from dataclasses import dataclass
from typing import Any

import pytest

torch = pytest.importorskip("torch")


from brimful import PackCollator  # noqa: E402
from brimful.collate import Padding, lay_out  # noqa: E402
from brimful.testing.contracts import DialectContract  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402
from tests.collate.dialects.reading import I32, at_places, pairs  # noqa: E402
from tests.collate.examples import build_packed_seq_params  # noqa: E402


class TestMegatron(DialectContract):
    dialect = "megatron"
    knows_gaps = True

    def segments(self, batch):
        return at_places(batch["tokens"], batch["cu_seqlens_padded"], batch["cu_seqlens"])

    def targets(self, batch):
        labels = torch.where(batch["loss_mask"] > 0, batch["labels"], -100)
        return pairs(batch["tokens"], labels, labels_shifted=True)

    def loss_tokens(self, batch):
        return int((batch["loss_mask"] > 0).sum())


@pytest.mark.parametrize("padding", [Padding(), Padding(to=16), Padding(to=24, segment_multiple_of=4)])
def test_megatron_core_reads_one_dimension(padding):
    """Its reader asserts that rows have one dimension, and makes of the boundaries the padding that we say."""
    given = PackCollator(dialect="megatron", padding=padding)([toy_pack([4, 2, 3])])
    where, real = given["cu_seqlens_padded"], given["cu_seqlens"]
    rows = [given[key] for key in ("tokens", "labels", "position_ids", "loss_mask", "padding_mask")]
    assert {(row.dim(), len(row)) for row in rows} == {(1, int(where[-1]))}
    places = torch.arange(int(where[-1]), dtype=I32)
    segment = torch.searchsorted(where[1:].contiguous(), places, right=True)
    assert (places >= (where[:-1] + real.diff())[segment]).tolist() == given["padding_mask"].tolist()
    assert given["max_seqlen"].shape == (1,)


@dataclass
class Params:
    qkv_format: str
    cu_seqlens_q: Any
    cu_seqlens_kv: Any
    cu_seqlens_q_padded: Any
    cu_seqlens_kv_padded: Any
    max_seqlen_q: int
    max_seqlen_kv: int


@dataclass
class NewerParams(Params):
    total_tokens: int
    seq_idx: Any
    pad_between_seqs: bool


def test_the_class_of_a_version_gets_its_own_fields():
    """A class of an older version takes no more; a newer one would guess the total, and assume no gaps."""
    batch = lay_out([toy_pack([3, 2])], padding=Padding(segment_multiple_of=4))
    old, new = build_packed_seq_params(batch, Params), build_packed_seq_params(batch, NewerParams)
    assert old.cu_seqlens_q_padded.tolist() == new.cu_seqlens_q_padded.tolist() == [0, 4, 8]
    assert (new.total_tokens, new.seq_idx.tolist(), new.pad_between_seqs) == (8, [[0] * 4 + [1] * 4], True)
    dense = build_packed_seq_params(lay_out([toy_pack([3, 2])]), NewerParams)
    assert (dense.cu_seqlens_q.tolist(), dense.cu_seqlens_q_padded, dense.pad_between_seqs) == ([0, 3, 5], None, False)
