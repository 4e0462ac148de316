"""Every dialect: its keys, dtypes and shapes, and the laws that hold for all of them."""

import re
from itertools import accumulate, pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.collate import DIALECTS, Media, PackExtras, Padding, dialect_of, lay_out  # noqa: E402
from brimful.collate.layout import cu_seqlens_of_mask  # noqa: E402
from brimful.errors import CollateError, SettingsError  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402

I64, I32, F32, BOOL = torch.int64, torch.int32, torch.float32, torch.bool
ROW, BOUNDARIES = (I64, (1, 12)), (I32, (4,))
VARLEN = {
    "cu_seq_lens_q": BOUNDARIES, "cu_seq_lens_k": BOUNDARIES, "max_length_q": 4, "max_length_k": 4,
}  # fmt: skip
TEXT = {"input_ids": ROW, "labels": ROW, "position_ids": ROW}
SHAPES = {
    "transformers": {**TEXT, **VARLEN, "seq_idx": (I32, (1, 12)), "use_cache": False},
    "trl": {**TEXT, **VARLEN, "seq_idx": (I32, (1, 12))},
    "ms_swift": {**TEXT, **VARLEN},
    "megatron": {
        "tokens": (I64, (12,)), "labels": (I64, (12,)), "position_ids": (I64, (12,)), "loss_mask": (F32, (12,)),
        "padding_mask": (BOOL, (12,)), "cu_seqlens": BOUNDARIES, "cu_seqlens_padded": BOUNDARIES,
        "max_seqlen": (I32, (1,)),
        "packed_seq_params": {
            "qkv_format": "thd", "cu_seqlens_q": BOUNDARIES, "cu_seqlens_kv": BOUNDARIES,
            "cu_seqlens_q_padded": BOUNDARIES, "cu_seqlens_kv_padded": BOUNDARIES, "max_seqlen_q": 4, "max_seqlen_kv": 4,
        },
    },
    "megatron_bridge": {
        **TEXT, "loss_mask": (F32, (1, 12)), "padding_mask": (BOOL, (1, 12)), "attention_mask": None,
        "cu_seqlens_q": BOUNDARIES, "cu_seqlens_kv": BOUNDARIES, "cu_seqlens_q_padded": BOUNDARIES,
        "cu_seqlens_kv_padded": BOUNDARIES, "max_seqlen_q": (I32, ()), "max_seqlen_kv": (I32, ()), "total_tokens": 12,
    },
    "megatron_bridge_legacy": {
        "tokens": ROW, "labels": ROW, "position_ids": ROW, "loss_mask": (F32, (1, 12)), "attention_mask": None,
        "cu_seqlens": (I32, (1, 5)), "cu_seqlens_argmin": (I64, (1, 1)), "cu_seqlens_unpadded": (I32, (1, 5)),
        "cu_seqlens_unpadded_argmin": (I64, (1, 1)), "max_seqlen": (I32, (1, 1)), "token_count": [12],
    },
    "transformer_engine": {
        "input_ids": (I64, (12,)), "labels": (I64, (12,)), "position_ids": (I64, (12,)), "qkv_format": "thd",
        "cu_seqlens_q": BOUNDARIES, "cu_seqlens_kv": BOUNDARIES, "cu_seqlens_q_padded": BOUNDARIES,
        "cu_seqlens_kv_padded": BOUNDARIES, "max_seqlen_q": 4, "max_seqlen_kv": 4, "pad_between_seqs": True,
    },
    "nemo_automodel": {**TEXT, "seq_lens": (I64, (1, 3)), "seq_lens_padded": (I64, (1, 3)), "qkv_format": "thd"},
    "torchtitan": {
        "input": (I64, (12,)), "labels": (I64, (12,)), "positions": (I64, (12,)),
        "varlen_metadata": {
            "cu_seq_q": BOUNDARIES, "cu_seq_k": BOUNDARIES, "max_q": 4, "max_k": 4, "cu_seq_q_host": (0, 4, 8, 12),
        },
    },
    "veomni": {
        **TEXT, **VARLEN, "attention_mask": ROW, "linear_attn_cu_seq_lens_q": BOUNDARIES,
        "tail_padding_length": (I32, ()),
    },
    "verl": {"input_ids": (I64, "2 samples"), "position_ids": (I64, "2 samples"), "loss_mask": (F32, "2 samples"),
             "batch_num_tokens": 3},
    "llama_factory": {
        "input_ids": (I64, (1, 16)), "labels": (I64, (1, 16)), "position_ids": (I64, (1, 16)),
        "attention_mask": (I32, (1, 16)),
        "packing_params": [{
            "sequence_boundaries": [0, 4, 8, 16], "image_subseq_ids": [2**32], "video_subseq_ids": [2**32],
            "audio_subseq_ids": [2**32], "right_padding_length": 8,
        }],
    },
    "axolotl": {**TEXT, "attention_mask": ROW},
    "flex_attention": {**TEXT, "document_ids": (I32, (12,)), "block_mask": (1, 1, 12, 12)},
    "dense_mask": {**TEXT, "attention_mask": (BOOL, (1, 1, 12, 12)), "use_cache": False},
    "dense_mask_additive": {**TEXT, "attention_mask": (F32, (1, 1, 12, 12)), "use_cache": False},
    "plain": {
        "input_ids": (I64, (2, 12)), "labels": (I64, (2, 12)), "position_ids": (I64, (2, 12)),
        "attention_mask": (I64, (2, 12)),
    },
}  # fmt: skip


def shape_of(value):
    if isinstance(value, torch.Tensor):
        return (value.dtype, f"{value.size(0)} samples" if value.is_nested else tuple(value.shape))
    if isinstance(value, dict):
        return {key: shape_of(inner) for key, inner in value.items()}
    if type(value).__name__ == "BlockMask":
        return value.shape
    assert not isinstance(value, (np.generic, np.ndarray))
    return [shape_of(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.parametrize("name", DIALECTS)
def test_keys_dtypes_and_shapes(name):
    """A row of 12 tokens: 3 and 2 with padding to 4 behind each, and 4 at the end."""
    collator = PackCollator(dialect=name, padding=Padding(to=12, segment_multiple_of=4))
    assert shape_of(collator([toy_pack([3, 2])])) == SHAPES[name]


def test_the_table_of_the_docs_names_every_dialect_and_key():
    """Documentation that lacks a key is where a trainer's page goes wrong."""
    text = (Path(__file__).parents[2] / "docs" / "dialects.md").read_text()
    sections = dict(re.findall(r"^## `(\w+)`\n(.*?)(?=^## |\Z)", text, flags=re.MULTILINE | re.DOTALL))
    assert set(sections) == set(DIALECTS)
    for name, shapes in SHAPES.items():
        missing = [key for key in shapes if f"`{key}`" not in sections[name]]
        assert not missing, f"{name}: {missing}"


# What a trainer would read out of each dialect: tokens of each segment without padding, and targets.


def segments_of(name, given):
    """Tokens of every segment, the padding left out, by this dialect's own means and no other."""
    if name == "plain":
        return [
            row[mask.bool()].tolist() for row, mask in zip(given["input_ids"], given["attention_mask"], strict=True)
        ]
    if name == "verl":
        return [row.tolist() for row in given["input_ids"].unbind()]
    if name in ("llama_factory", "axolotl"):
        pieces = []
        for ids, mask in zip(given["input_ids"], given["attention_mask"].numpy(), strict=True):
            edges = cu_seqlens_of_mask(mask)
            pieces += [ids[start:stop].tolist() for start, stop in pairwise(edges) if mask[start]]
        return pieces
    if name == "nemo_automodel":
        pieces = []
        for ids, lengths, padded in zip(given["input_ids"], given["seq_lens"], given["seq_lens_padded"], strict=True):
            starts = accumulate(padded.tolist(), initial=0)
            pieces += [
                ids[start : start + n].tolist() for start, n in zip(starts, lengths.tolist(), strict=False) if n > 0
            ]
        return pieces
    ids = given.get("tokens", given.get("input", given.get("input_ids"))).reshape(-1)
    if name == "megatron":
        where, real = given["cu_seqlens_padded"], given["cu_seqlens"]
    elif name == "megatron_bridge_legacy":
        where = given["cu_seqlens"][0, : given["cu_seqlens_argmin"].item()]
        real = where
        if "cu_seqlens_unpadded" in given:
            real = given["cu_seqlens_unpadded"][0, : given["cu_seqlens_unpadded_argmin"].item()]
    elif name in ("megatron_bridge", "transformer_engine"):
        real = given["cu_seqlens_q"]
        where = given.get("cu_seqlens_q_padded", real)
    elif name == "torchtitan":
        assert (given["positions"] == 0).nonzero().flatten().tolist() == given["varlen_metadata"]["cu_seq_q"].tolist()[
            :-1
        ]
        return pieces_of(ids, given["varlen_metadata"]["cu_seq_q"])
    elif name == "flex_attention":
        return pieces_of(ids, cu_seqlens_of_mask(given["document_ids"].numpy()))
    elif name.startswith("dense_mask"):
        sees = given["attention_mask"][0, 0]
        sees = sees if sees.dtype == BOOL else sees == 0
        first = sees.int().argmax(dim=1).numpy()
        return pieces_of(ids, cu_seqlens_of_mask(first))
    else:
        assert given["seq_idx"][0].tolist() == number_of_segment(given["cu_seq_lens_q"]) if "seq_idx" in given else True
        return pieces_of(ids, given["cu_seq_lens_q"])
    return [
        ids[start : start + stop - begin].tolist()
        for start, (begin, stop) in zip(where.tolist(), pairwise(real.tolist()), strict=False)
        if stop > begin
    ]


def pieces_of(ids, edges):
    return [ids[start:stop].tolist() for start, stop in pairwise(edges.tolist())]


def number_of_segment(edges):
    return [number for number, (start, stop) in enumerate(pairwise(edges.tolist())) for _ in range(start, stop)]


def loss_tokens(name, given):
    if name in ("megatron", "megatron_bridge_legacy"):
        return int((given["loss_mask"] > 0).sum())
    if name == "verl":
        return int((given["loss_mask"].values() > 0).sum())
    return int((given["labels"] != -100).sum())


def targets(name, given, labels_shifted):
    """Pairs of a token and what it has to predict, in order."""
    if name == "verl":
        rows = zip(given["input_ids"].unbind(), given["loss_mask"].unbind(), strict=True)
        return [(a, b) for ids, mask in rows for a, b, m in zip(ids[:-1].tolist(), ids[1:].tolist(), mask[1:].tolist(), strict=True) if m]  # fmt: skip
    ids = given.get("tokens", given.get("input", given.get("input_ids")))
    labels = given["labels"]
    if "loss_mask" in given:
        labels = torch.where(given["loss_mask"] > 0, labels, -100)
    ids, labels = ids.reshape(-1, ids.shape[-1]), labels.reshape(-1, labels.shape[-1])
    if not labels_shifted:
        ids, labels = ids[:, :-1], labels[:, 1:]
    return [pair for pair in zip(ids.flatten().tolist(), labels.flatten().tolist(), strict=True) if pair[1] != -100]


KNOWS_GAPS = {
    "plain", "verl", "llama_factory", "axolotl", "nemo_automodel", "megatron", "megatron_bridge",
    "megatron_bridge_legacy", "transformer_engine",
}  # fmt: skip
PACKS = st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3)


@pytest.mark.parametrize("name", DIALECTS)
@settings(max_examples=15)
@given(packs=PACKS, unit=st.sampled_from([1, 1, 4]), fixed=st.booleans())
def test_laws_of_every_dialect(name, packs, unit, fixed):
    """Each sample is there with its tokens and none of the padding; targets are those of the samples one by one."""
    made = [toy_pack(lengths, first_sample=10 * number, seed=number) for number, lengths in enumerate(packs)]
    padding = Padding(to=160 if fixed else None, segment_multiple_of=unit)
    batch = PackCollator(dialect=name, padding=padding)
    given = batch(made)
    samples = [pack.segment(place).tolist() for pack in made for place in range(pack.num_segments)]
    found = segments_of(name, given)
    if name in KNOWS_GAPS:
        assert [piece for piece in found if any(piece)] == samples
    else:  # the dialect has no word for padding behind a segment: it belongs to the segment
        assert [piece[: len(sample)] for piece, sample in zip(found, samples, strict=False)] == samples
        assert [len(piece) for piece in found[: len(samples)]] == [-(-len(sample) // unit) * unit for sample in samples]
        assert not any(token for piece in found[len(samples) :] for token in piece)
    expected = [(a, b) for sample in samples for a, b in pairwise(sample)]
    assert loss_tokens(name, given) == len(expected) == sum(pack.num_loss_tokens for pack in made)
    assert targets(name, given, dialect_of(name).labels_shifted) == expected


@pytest.mark.parametrize("name", DIALECTS)
def test_the_first_label_of_a_segment_is_never_a_target(name):
    """Not even if a sample says so: nothing before it may predict it."""
    rows = [{"input_ids": [5, 6, 7], "labels": [5, 6, 7]}, {"input_ids": [8, 9], "labels": [8, 9]}]
    given = PackCollator(dialect=name)(rows)
    assert targets(name, given, dialect_of(name).labels_shifted) == [(5, 6), (6, 7), (8, 9)]


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("transformers", (4, 1, 8)), ("trl", (4, 1, 8)), ("ms_swift", (3, 1, 8)), ("megatron", (3, 1, 8)),
        ("megatron_bridge", (3, 1, 8)), ("transformer_engine", (3, 8)), ("nemo_automodel", (3, 1, 8)),
        ("veomni", (1, 3, 8)), ("llama_factory", (4, 1, 9)), ("axolotl", (4, 1, 8)), ("flex_attention", (4, 1, 8)),
        ("dense_mask", (4, 1, 8)), ("plain", (4, 2, 8)),
    ],
)  # fmt: skip
def test_positions_of_mrope(name, shape):
    """Time, height and width come from the samples; the text row is added, and padding counts like text."""
    pack = toy_pack([4, 2])
    rope = np.array([[0, 1, 1, 2, 0, 1], [0, 1, 1, 2, 0, 1], [0, 1, 2, 3, 0, 1]])
    grid = np.array([[1, 2, 4]])
    image = Media("image", np.array([0], dtype=np.int32), {"image_grid_thw": grid})
    given = PackCollator(dialect=name, pad_to=8)([(pack, PackExtras(rope_positions=rope, media=(image,)))])
    positions = given["position_ids"]
    assert tuple(positions.shape) == shape
    assert given["image_grid_thw"].tolist() == [[1, 2, 4]]
    if name == "transformers":
        assert positions[:, 0].tolist() == [[0, 1, 2, 3, 0, 1, 0, 1], *[[*row, 0, 1] for row in rope.tolist()]]
    if name == "ms_swift":
        assert given["text_position_ids"].tolist() == [[0, 1, 2, 3, 0, 1, 0, 1]]
    if name == "llama_factory":
        assert given["packing_params"][0]["image_subseq_ids"] == [0]


def test_positions_of_mrope_in_nested_and_flat_rows():
    """verl and torchtitan have shapes of their own."""
    rope = np.tile(np.arange(6), (3, 1))
    extras = PackExtras(rope_positions=rope)
    nested = PackCollator(dialect="verl")([(toy_pack([4, 2]), extras)])["position_ids"]
    assert [tuple(row.shape) for row in nested.unbind()] == [(4, 4), (4, 2)]
    assert tuple(nested.values().shape) == (4, 6)
    flat = PackCollator(dialect="torchtitan")([(toy_pack([4, 2]), extras)])
    assert flat["mrope_positions"].tolist() == rope.tolist()
    assert flat["positions"].tolist() == [0, 1, 2, 3, 0, 1]


@pytest.mark.parametrize(
    ("name", "key", "expected"),
    [
        ("transformers", "loss_weights", [[0, 0.5, 0.5, 0, 1, 0]]),
        ("ms_swift", "loss_scale", [[0, 0.5, 0.5, 0, 1, 0]]),
        ("megatron", "loss_mask", [0.5, 0.5, 0, 1, 0, 0]),
        ("megatron_bridge", "loss_mask", [[0.5, 0.5, 0, 1, 0, 0]]),
        ("transformer_engine", "loss_weights", [0, 0.5, 0.5, 0, 1, 0]),
        ("nemo_automodel", "loss_weights", [[0.5, 0.5, 0, 1, 0, 0]]),
        ("torchtitan", "loss_weights", [0.5, 0.5, 0, 1, 0, 0]),
        ("axolotl", "loss_weights", [[0, 0.5, 0.5, 0, 1, 0]]),
        ("plain", "loss_weights", [[0, 0.5, 0.5, 0, 0, 0], [0, 1, 0, 0, 0, 0]]),
    ],
)
def test_weights_lie_beside_their_labels(name, key, expected):
    """Every sample counts the same; where labels are shifted, so are the weights."""
    given = PackCollator(dialect=name, pad_to=6, loss_weights="sample")([toy_pack([3, 2])])
    assert given[key].tolist() == expected
    assert given[key].dtype == F32


def test_rows_of_several_packs_are_equally_long():
    """One row a pack where the dialect has rows; missing lengths are marked."""
    given = PackCollator(dialect="nemo_automodel")([toy_pack([3, 2]), toy_pack([4])])
    assert given["seq_lens"].tolist() == [[3, 2], [4, 0]]
    assert given["seq_lens_padded"].tolist() == [[3, 2], [4, 1]]
    given = PackCollator(dialect="nemo_automodel")([toy_pack([1, 1, 2]), toy_pack([4])])
    assert given["seq_lens"].tolist() == [[1, 1, 2], [4, -1000, -1000]]
    given = PackCollator(dialect="llama_factory")([toy_pack([3, 2]), toy_pack([4])])
    assert given["attention_mask"].tolist() == [[1, 1, 1, 2, 2, 0], [1, 1, 1, 1, 0, 0]]


def test_padding_at_the_end_alone_is_no_gap():
    """Then the boundaries are one tensor, and the kernels that know no gaps are used."""
    batch = lay_out([toy_pack([3, 2])], pad_to=8)
    engine = dialect_of("transformer_engine").speak([batch])
    assert engine["cu_seqlens_q"] is engine["cu_seqlens_q_padded"]
    assert engine["pad_between_seqs"] is False
    assert engine["cu_seqlens_q"].tolist() == [0, 3, 5, 8]
    megatron = dialect_of("megatron").speak([batch])
    assert megatron["packed_seq_params"]["cu_seqlens_q_padded"] is None
    assert megatron["cu_seqlens"].tolist() == [0, 3, 5, 5]
    assert megatron["cu_seqlens_padded"].tolist() == [0, 3, 5, 8]
    assert "cu_seqlens_q_padded" not in dialect_of("megatron_bridge").speak([batch])
    assert "cu_seqlens_unpadded" not in dialect_of("megatron_bridge_legacy").speak([batch])


def test_no_varlen_dialect_has_a_mask():
    """Transformers unpads by a mask and ignores the boundaries where there is one. VeOmni wants ones, and does not."""
    for name in ("transformers", "trl", "ms_swift", "transformer_engine", "torchtitan", "megatron"):
        assert "attention_mask" not in PackCollator(dialect=name, pad_to=8)([toy_pack([4, 2])])


def test_positions_may_begin_elsewhere():
    """RoBERTa counts from 2. Trainers that look for position 0 would find no beginning at all."""
    given = PackCollator(position_start=2, pad_to=6)([toy_pack([3, 2])])
    assert given["position_ids"].tolist() == [[2, 3, 4, 2, 3, 2]]
    with pytest.raises(SettingsError, match="position_start=2 does not go with dialect 'torchtitan'"):
        PackCollator(dialect="torchtitan", position_start=2)


def test_an_unknown_dialect_is_refused_with_the_known_ones():
    """Typing errors end at the constructor."""
    with pytest.raises(SettingsError, match=r"no dialect 'megatrn'.*transformers, trl, ms_swift"):
        PackCollator(dialect="megatrn")


def test_dialects_are_loaded_when_they_are_asked_for():
    """A list of names costs no torch."""
    import subprocess
    import sys

    code = "import sys; from brimful.collate import DIALECTS, lay_out, Padding; print(len(DIALECTS), 'torch' in sys.modules)"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.split() == [str(len(DIALECTS)), "False"]


def test_collators_go_to_workers():
    """A loader with workers sends the collator to another process."""
    import copy

    collator = PackCollator(dialect="megatron", padding=Padding(to=8), loss_weights="sample")
    packs = [toy_pack([4, 2])]
    assert copy.deepcopy(collator)(packs)["labels"].tolist() == collator(packs)["labels"].tolist()
    assert collator.__reduce_ex__(2)


def test_rows_of_plain_are_padded_as_asked():
    """Ignored, a compiled model would compile for every batch, and embed token 0 where another is padding."""
    packs = [toy_pack([3, 2])]
    ids = packs[0].input_ids.tolist()
    given = PackCollator(dialect="plain", pad_to=5, pad_token_id=9)(packs)
    assert given["input_ids"].tolist() == [[*ids[:3], 9, 9], [*ids[3:], 9, 9, 9]]
    assert given["labels"].tolist() == [[-100, *ids[1:3], -100, -100], [-100, ids[4], -100, -100, -100]]
    assert given["attention_mask"].tolist() == [[1, 1, 1, 0, 0], [1, 1, 0, 0, 0]]
    for padding in (Padding(multiple_of=4), Padding(segment_multiple_of=4), Padding(to=4)):
        assert PackCollator(dialect="plain", padding=padding)(packs)["input_ids"].shape == (2, 4)
    with pytest.raises(CollateError, match="pad_to is 2 and sample 0 has 3 tokens: raise it"):
        PackCollator(dialect="plain", pad_to=2)(packs)
    for setting in ({"num_segments": 4}, {"max_seqlen": 8}):
        with pytest.raises(SettingsError, match=f"{next(iter(setting))}=. does not go with dialect 'plain'"):
            PackCollator(dialect="plain", padding=Padding(**setting))


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


@pytest.mark.parametrize("padding", [Padding(), Padding(to=16), Padding(to=24, segment_multiple_of=4)])
def test_no_segment_of_megatron_bridge_is_empty(padding):
    """Where Bridge makes positions of pictures it refuses a segment without tokens, and reads each from where it lies."""
    given = PackCollator(dialect="megatron_bridge", padding=padding)([toy_pack([4, 2, 3])])
    real, where = given["cu_seqlens_q"], given.get("cu_seqlens_q_padded", given["cu_seqlens_q"])
    lengths = real.diff()
    assert lengths.tolist()[:3] == [4, 2, 3]
    assert bool((lengths > 0).all())
    assert bool((where[:-1] + lengths <= where[1:]).all())
    tail = given["input_ids"][0, int(where[3]) :]
    assert sum(lengths.tolist()[3:]) == len(tail)


def test_positions_of_mrope_are_refused_where_there_is_no_word_for_them():
    """Left out, pictures would get the positions of text."""
    extras = PackExtras(rope_positions=np.tile(np.arange(6), (3, 1)))
    with pytest.raises(
        CollateError, match=r"samples 0, 1… have positions of mRoPE.*choose dialect=\"megatron_bridge\""
    ):
        PackCollator(dialect="megatron_bridge_legacy")([(toy_pack([4, 2]), extras)])


def test_sources_for_the_meter_of_veomni():
    """With several sources it takes one number for each sample from the batch, and fails without."""
    packs = [(toy_pack([3, 2]), PackExtras(source_ids=np.array([1, 0], np.int32)))]
    given = PackCollator(dialect="veomni", pad_to=8)(packs)
    assert (given["ds_idx"].tolist(), given["ds_idx"].dtype) == ([1, 0], I64)
    assert "ds_idx" not in PackCollator(dialect="veomni")([toy_pack([3, 2])])
