"""Trees of TRL: queries of a segment, and the keys of its path, gathered one path after the other."""

import pytest
from hypothesis import given

torch = pytest.importorskip("torch")

from brimful.collate.dialects import dialect_of  # noqa: E402
from brimful.testing.contracts import DialectContract  # noqa: E402
from tests.collate.dialects.forks import SAMPLES, forked  # noqa: E402
from tests.collate.dialects.reading import I32, I64, between, pairs  # noqa: E402


class TestTrlTree(DialectContract):
    dialect = "trl_tree"
    shapes = {
        "input_ids": (I64, (12,)), "position_ids": (I64, (12,)), "shift_labels": (I64, (12,)),
        "tree_kv_index": (I64, (12,)), "tree_cu_seqlens_q": (I32, (4,)), "tree_cu_seqlens_k": (I32, (4,)),
        "tree_max_seqlens": (I64, (2,)), "token_index": (I64, (3,)), "segment_id": (I64, (3,)),
    }  # fmt: skip

    def segments(self, batch):
        keys = batch["input_ids"][batch["tree_kv_index"]]
        return between(keys, batch["tree_cu_seqlens_k"].tolist())

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["shift_labels"], labels_shifted=True)

    def loss_tokens(self, batch):
        return len(batch["token_index"])


@given(SAMPLES)
def test_a_row_is_the_one_of_trl(samples):
    """Equal in every element to what TRL packs of the same samples."""
    packing = pytest.importorskip("trl.experimental.async_grpo.packing", exc_type=ImportError)
    batch, ordered = forked(samples)
    row = packing.TreeRow()
    for tokens, mask in ordered:
        row.add(
            {
                "input_ids": torch.tensor(tokens),
                "completion_mask": torch.tensor(mask).long(),
                "old_log_probs": torch.zeros(len(tokens)),
                "advantage": 1.0,
                "group_id": 0,
            }
        )
    expected = row.pack()
    given = dialect_of("trl_tree").load()(batch)
    assert set(expected) - set(given) == {"old_log_probs", "advantages"}
    for name, tensor in given.items():
        assert tensor.dtype == expected[name].dtype, name
        assert torch.equal(tensor, expected[name]), name
