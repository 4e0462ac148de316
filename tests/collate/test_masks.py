"""Masks: FlexAttention's blocks, all pairs, and what a model makes of each dialect."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch.nn.attention.flex_attention import create_block_mask, flex_attention  # noqa: E402

from brimful import PackCollator  # noqa: E402
from brimful.collate import Padding, lay_out  # noqa: E402
from brimful.collate.dialects.flex_attention import block_mask_of, document_mask_mod, to_flex_attention  # noqa: E402
from brimful.collate.layout import indexed_mask  # noqa: E402
from brimful.shards import assemble_pack  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch and its compiler; as errors they would break it

LENGTHS = [7, 12, 1, 5]


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


def test_all_pairs_written_out():
    """Segments of 2 and 1, one token of padding that sees itself."""
    mask = PackCollator(dialect="dense_mask", pad_to=4)([toy_pack([2, 1])])["attention_mask"]
    assert mask[0, 0].int().tolist() == [[1, 0, 0, 0], [1, 1, 0, 0], [0, 0, 1, 0], [0, 0, 0, 1]]
    added = PackCollator(dialect="dense_mask_additive", pad_to=4)([toy_pack([2, 1])])["attention_mask"]
    assert torch.equal(added == 0, mask)
    assert added.min() == torch.finfo(torch.float32).min


def test_boundaries_of_a_segment_mask():
    """The mask of the Ascend kit: a real segment of one token before the padding keeps its own boundaries."""
    mask = np.array([1, 1, 2, 2, 2, 3, 3, 4, 5, 5, 5, 0, 0])
    boundaries = [0, *(np.flatnonzero(mask[1:] != mask[:-1]) + 1).tolist(), len(mask)]
    assert boundaries == [0, 2, 5, 7, 8, 11, 13]
    batch = lay_out([toy_pack([2, 3, 2, 1, 3])], pad_to=13)
    assert indexed_mask(batch).tolist() == mask.tolist()
    assert batch.cu_seqlens.tolist() == boundaries


@pytest.fixture
def logits_of(monkeypatch):
    transformers = pytest.importorskip("transformers")
    import transformers.integrations.flex_attention as integration

    def uncompiled(query, key, value, training=False, **options):
        """The compiled form is tested with the parity of whole packs; here its compiler would only cost a minute."""
        return flex_attention(query, key, value, **options)

    monkeypatch.setattr(integration, "compile_friendly_flex_attention", uncompiled)

    def run(attention, **inputs):
        torch.manual_seed(0)
        config = transformers.Qwen2Config(
            vocab_size=64,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=128,
        )
        net = transformers.AutoModelForCausalLM.from_config(config, attn_implementation=attention).float().eval()
        with torch.no_grad():
            return net(**{"use_cache": False, **inputs}).logits

    return run


def samples():
    rng = np.random.default_rng(0)
    ids = [rng.integers(1, 64, length).astype(np.int32) for length in LENGTHS]
    return assemble_pack(ids, [np.ones(length, bool) for length in LENGTHS], range(4))


@pytest.mark.parametrize(
    ("name", "attention", "mask"),
    [
        ("transformers", "sdpa", None),
        ("trl", "sdpa", None),
        ("dense_mask", "sdpa", "attention_mask"),
        ("dense_mask_additive", "eager", "attention_mask"),
        ("flex_attention", "flex_attention", "block_mask"),
    ],
)
@pytest.mark.parametrize("unit", [1, 4])
def test_logits_equal_the_plain_reference(logits_of, name, attention, mask, unit):
    """Packed in any dialect, with padding behind segments and at the end: what padded rows give, sample by sample."""
    pack = samples()
    plain = PackCollator(dialect="plain")([pack])
    expected = logits_of("sdpa", **{key: plain[key] for key in ("input_ids", "attention_mask", "position_ids")})
    expected = expected[plain["attention_mask"].bool()]
    collator = PackCollator(dialect=name, padding=Padding(to=48, segment_multiple_of=unit))
    (batch,) = collator.rows([pack])
    given = collator([pack])
    inputs = {key: given[key] for key in ("input_ids", "position_ids")}
    if mask is not None:
        inputs["attention_mask"] = given[mask]
    found = logits_of(attention, **inputs)[0][torch.from_numpy(~batch.padding_mask)]
    assert (found - expected).abs().max() < 1e-5
