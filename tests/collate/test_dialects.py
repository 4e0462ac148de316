"""Dialects beside each other: positions, weights and padding. What each one says is read in ``dialects/test_<name>.py``."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.collate import DIALECTS, PackExtras, Padding, dialect_of, lay_out  # noqa: E402
from brimful.errors import CollateError, SettingsError  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402
from tests.collate.dialects.reading import F32, I32, I64, pack_with_image  # noqa: E402


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
    given = PackCollator(dialect=name, pad_to=8)([pack_with_image()])
    assert tuple(given["position_ids"].shape) == shape
    assert given["image_grid_thw"].tolist() == [[1, 2, 4]]


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
