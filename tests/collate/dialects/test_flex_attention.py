"""FlexAttention: tokens see each other where their document is the same."""

import pytest

pytest.importorskip("torch")


import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

from brimful import PackCollator
from brimful.collate import Padding, lay_out
from brimful.collate.dialects.flex_attention import block_mask_of, document_mask_mod, to_flex_attention
from brimful.testing.contracts import DialectContract
from brimful.testing.toys import toy_pack, toy_tree
from brimful.trees.masks import tree_block_mask, tree_mask, tree_mask_mod
from tests.collate.dialects.reading import between, changes, count_labels, pairs
from tests.trees.test_pack_tree import SAMPLES

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch and its compiler; as errors they would break it


class TestFlexAttention(DialectContract):
    dialect = "flex_attention"

    def segments(self, batch):
        return between(batch["input_ids"][0], changes(batch["document_ids"].tolist()))

    def targets(self, batch):
        return pairs(batch["input_ids"], batch["labels"], labels_shifted=False)

    def loss_tokens(self, batch):
        return count_labels(batch)


@pytest.mark.parametrize(
    ("lengths", "to", "block"),
    [([300, 20, 130], 512, 128), ([256, 256], 512, 128), ([1000], 1000, 128), ([5, 3, 1], 13, 4), ([5, 3], 8, 2)],
)
def test_blocks_are_those_of_torch(lengths, to, block):
    """The same blocks, full and partial, that PyTorch finds by looking at every pair of tokens."""
    batch = lay_out([toy_pack(lengths)], padding=Padding(to=to, num_segments=len(lengths) + 2))
    documents = to_flex_attention(batch)["document_ids"]
    ours = block_mask_of(batch.cu_seqlens, documents, block_size=block)
    theirs = create_block_mask(document_mask_mod(documents), None, None, to, to, device="cpu", BLOCK_SIZE=block)
    assert ours.shape == theirs.shape
    for kind in ("kv", "full_kv", "q", "full_q"):
        counts = getattr(theirs, f"{kind}_num_blocks")
        assert torch.equal(getattr(ours, f"{kind}_num_blocks"), counts), kind
        for row, number in enumerate(counts[0, 0].tolist()):
            ours_row, theirs_row = (getattr(mask, f"{kind}_indices")[0, 0, row, :number] for mask in (ours, theirs))
            assert ours_row.tolist() == theirs_row.tolist(), kind


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=6),
    extra=st.integers(0, 9),
    block=st.sampled_from([2, 4, 16]),
    spare=st.integers(0, 2),
)
def test_blocks_are_those_of_a_slow_search(lengths, extra, block, spare):
    """A block is left out if none of its pairs see each other, and full if all do."""
    count = len(lengths) + (extra > 0) + spare
    batch = lay_out([toy_pack(lengths)], padding=Padding(to=sum(lengths) + extra, num_segments=count))
    size = len(batch.input_ids)
    documents = batch.segment_index
    mask = block_mask_of(batch.cu_seqlens, torch.from_numpy(documents), block_size=block)
    blocks = -(-size // block)
    pairs = np.zeros((blocks * block,) * 2, dtype=bool)
    pairs[:size, :size] = np.tril(documents[:, None] == documents[None, :])
    tiles = pairs.reshape(blocks, block, blocks, block).transpose(0, 2, 1, 3).reshape(blocks, blocks, -1)
    full, seen = tiles.all(axis=2), tiles.any(axis=2)
    for counts, places, expected in (
        (mask.kv_num_blocks, mask.kv_indices, seen & ~full),
        (mask.full_kv_num_blocks, mask.full_kv_indices, full),
    ):
        for row in range(blocks):
            assert places[0, 0, row, : counts[0, 0, row]].tolist() == np.flatnonzero(expected[row]).tolist()


def test_flex_attention_sees_what_the_dense_mask_sees():
    """The block mask at work: the same numbers as SDPA with all pairs written out."""
    packs = [toy_pack([130, 5, 121])]
    blocks = PackCollator(dialect="flex_attention", pad_to=300)(packs)["block_mask"]
    dense = PackCollator(dialect="dense_mask", pad_to=300)(packs)["attention_mask"]
    query, key, value = (torch.randn(1, 2, 300, 16, generator=torch.Generator().manual_seed(n)) for n in range(3))
    flex = flex_attention(query, key, value, block_mask=blocks)
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=dense)
    assert (flex - expected).abs().max() < 1e-5


@given(SAMPLES, st.sampled_from([None, 1, 3, 6]), st.sampled_from([2, 4, 8]))
def test_blocks_of_trees_are_those_of_torch(samples, window, block):
    """Full and partial, with and without a window along the path; two trees and the padding."""
    tokens, masks = zip(*samples, strict=True)
    collate = PackCollator(dialect="flex_attention", branch="index", padding=Padding(multiple_of=8))
    batch = collate([toy_tree(tokens, masks), toy_tree(tokens)])
    tree_out, positions = batch["tree_out"], batch["position_ids"][0]
    size = len(tree_out)
    ours = tree_block_mask(tree_out, positions=positions, window=window, block_size=block)
    mask_mod = tree_mask_mod(tree_out, positions, window)
    theirs = create_block_mask(mask_mod, None, None, size, size, device="cpu", BLOCK_SIZE=block)
    for kind in ("kv", "full_kv"):
        counts = getattr(theirs, f"{kind}_num_blocks")
        assert torch.equal(getattr(ours, f"{kind}_num_blocks"), counts)
        for row, number in enumerate(counts[0, 0].tolist()):
            ours_row, theirs_row = (getattr(mask, f"{kind}_indices")[0, 0, row, :number] for mask in (ours, theirs))
            assert ours_row.tolist() == theirs_row.tolist(), kind
    places = torch.arange(size)
    dense = mask_mod(places, places, places[:, None], places)
    near = tree_mask(tree_out) & (positions[:, None] - positions < (window or size))
    assert dense.equal(near)
    assert batch["block_mask"].shape == (1, 1, size, size)
