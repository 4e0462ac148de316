"""Columns: where the values of tokens lie in a row, in every dialect, and what is refused by name."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.collate import (  # noqa: E402
    DIALECTS,
    Column,
    PackExtras,
    Padding,
    dialect_of,
    lay_out,
)
from brimful.collate.columns import RESERVED_NAMES  # noqa: E402
from brimful.errors import CollateError, SettingsError  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402
from tests.collate.dialects.reading import key_of  # noqa: E402
from tests.collate.examples import trl_example  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")  # of torch's nested tensors and compiler


def numbered(pack, **changes):
    """A pack with the tokens of its row, from 1, as a column."""
    values = np.arange(1, len(pack) + 1, dtype=np.float32)
    return pack, PackExtras(columns=(replace(Column("old_log_probs", values), **changes),))


def laid_out(features, **options):
    packs, extras = zip(*features, strict=True)
    return lay_out(packs, extras=extras, **options)


def test_a_column_lies_at_its_tokens():
    """Gaps after segments and the padding at the end hold the fill, and so does what nothing predicts."""
    padding = Padding(to=12, segment_multiple_of=4)
    token = laid_out([numbered(toy_pack([3, 2]), place="token", fill=9)], padding=padding)
    assert token.column("old_log_probs").values.tolist() == [1, 2, 3, 9, 4, 5, 9, 9, 9, 9, 9, 9]
    target = laid_out([numbered(toy_pack([3, 2]), fill=9)], padding=padding)
    assert target.column("old_log_probs").values.tolist() == [9, 2, 3, 9, 9, 5, 9, 9, 9, 9, 9, 9]
    shifted = target.column("old_log_probs").shifted(target.cu_seqlens)
    assert shifted.values.tolist() == [2, 3, 9, 9, 5, 9, 9, 9, 9, 9, 9, 9]
    assert token.column("old_log_probs").shifted(token.cu_seqlens).values.tolist() == token.columns[0].values.tolist()


@given(
    lengths=st.lists(st.lists(st.integers(1, 9), min_size=1, max_size=4), min_size=1, max_size=3),
    unit=st.integers(1, 4),
    tail=st.sampled_from([(), (2,), (3, 2)]),
    dtype=st.sampled_from(["float32", "float16", "int64", "int32", "int16", "uint8", "bool"]),
    place=st.sampled_from(["token", "target"]),
)
def test_columns_follow_their_labels(lengths, unit, tail, dtype, place):
    """Any dtype and any further dimensions: a value is at its token before and after shifting."""
    features, first = [], 0
    for sizes in lengths:
        pack = toy_pack(sizes, first_sample=first)
        values = np.broadcast_to(pack.input_ids.reshape(-1, *[1] * len(tail)), (len(pack), *tail)).astype(dtype)
        features.append((pack, PackExtras(columns=(Column("x", values, place=place),))))
        first += len(sizes)
    batch = laid_out(features, padding=Padding(segment_multiple_of=unit, multiple_of=2))
    ids = np.where(batch.padding_mask, 0, batch.input_ids).astype(dtype)
    targets = np.where(batch.labels == -100, 0, batch.labels).astype(dtype)
    column = batch.columns[0]
    assert column.values.shape == (len(ids), *tail)
    assert column.values.dtype == np.dtype(dtype)
    expected = ids if place == "token" else targets
    assert (column.values == expected.reshape(-1, *[1] * len(tail))).all()
    if place == "target":
        moved = column.shifted(batch.cu_seqlens).values
        for begin, end in zip(batch.cu_seqlens[:-1].tolist(), batch.cu_seqlens[1:].tolist(), strict=True):
            assert (moved[begin : end - 1] == column.values[begin + 1 : end]).all()
            assert not moved[end - 1 : end].any()


@pytest.mark.parametrize("name", DIALECTS)
def test_every_dialect_carries_columns_beside_its_labels(name):
    """Where labels are shifted, what belongs to targets is shifted too; routes stay with the token that is read."""
    pack = toy_pack([3, 2])
    ids = pack.input_ids
    columns = (
        Column("label_again", np.stack([ids, ids], axis=1).astype(np.int64), fill=-100, place="target"),
        Column("token_again", ids.astype(np.int32), fill=-1, place="token"),
    )
    batch = PackCollator(dialect=name, padding=Padding(to=8))([(pack, PackExtras(columns=columns))])
    assert batch.keys() - {"label_again", "token_again"} <= RESERVED_NAMES
    target, token = batch["label_again"], batch["token_again"]
    if name == "verl":
        assert [row.tolist() for row in token.unbind()] == [ids[:3].tolist(), ids[3:].tolist()]
        assert [row[:, 0].tolist() for row in target.unbind()] == [[-100, *ids[1:3].tolist()], [-100, int(ids[4])]]
        return
    tokens = batch[key_of(name, "tokens")]
    assert tuple(token.shape) == tuple(tokens.shape)
    assert torch.where(token == -1, 0, token).tolist() == tokens.tolist()
    if name == "trl_tree":  # a row for each target
        assert target[:, 0].tolist() == ids[[1, 2, 4]].tolist()
        return
    mask = key_of(name, "targets")
    labels = torch.where(batch[mask], tokens, -100) if mask else batch["labels"]
    labels = torch.where(labels == 0, -100, labels)  # Megatron has 0 without a target
    assert tuple(target.shape) == (*labels.shape, 2)
    assert target[..., 1].tolist() == labels.tolist()
    assert dialect_of(name).name == name


def test_keys_of_dialects_are_taken():
    """A column must not replace an array of the trainer."""
    for name in ("labels", "doc_lens", "target_weights"):
        with pytest.raises(SettingsError, match=f"'{name}'"):
            Column(name, np.zeros(3, np.float32))


FLOATS = np.zeros(5, np.float32)


@pytest.mark.parametrize(("columns", "words"), [
    ([(), (Column("x", FLOATS),)], r"samples 2, 3… has the columns \['x'\] and others of the batch \[\]"),
    ([(Column("x", FLOATS),), ()], r"samples 2, 3… has the columns \[\] and others of the batch \['x'\]"),
    ([(Column("x", FLOATS),), (Column("x", FLOATS), Column("y", FLOATS))], r"has the columns \['x', 'y'\] and others"),
    ([(Column("x", FLOATS),), (Column("x", FLOATS[:4]),)], "is for 4 tokens and the pack has 5"),
    ([(Column("x", FLOATS),), (Column("x", FLOATS, fill=1),)], "fill 1 of the target and"),
    ([(Column("x", FLOATS),), (Column("x", FLOATS.astype(int)),)], "is int64"),
    ([(Column("x", FLOATS),), (Column("x", FLOATS, place="token"),)], "of the token and"),
    ([(Column("x", FLOATS),), (Column("x", FLOATS[:, None]),)], r"float32\[tokens, 1\]"),
    ([(Column("x", FLOATS), Column("x", FLOATS)), (Column("x", FLOATS),)], r"has the columns \['x', 'x'\] .* give each column once"),
])  # fmt: skip
def test_columns_that_do_not_join(columns, words):
    packs = [toy_pack([3, 2], first_sample=2 * index) for index in range(2)]
    with pytest.raises(CollateError, match=words):
        lay_out(packs, extras=[PackExtras(columns=given) for given in columns])


@pytest.mark.parametrize(("values", "fill", "error"), [
    (np.array(["a"]), 0, CollateError),
    ([1.0], 0, CollateError),
    (np.zeros(2, np.int32), 0.5, SettingsError),
    (np.zeros(2, np.uint8), -1, SettingsError),
    (np.zeros(2, np.bool_), 2, SettingsError),
    (np.zeros(2, np.float32), "0", SettingsError),
])  # fmt: skip
def test_a_column_checks_itself(values, fill, error):
    with pytest.raises(error, match="'x'"):
        Column("x", values, fill)


def test_a_fill_that_is_no_number():
    """NaN is the fill of choice of who wants to see every use of padding."""
    batch = laid_out(
        [numbered(toy_pack([3]), fill=float("nan")), numbered(toy_pack([2]), fill=float("nan"))], padding=Padding(to=7)
    )
    assert np.isnan(batch.columns[0].values).tolist() == [True, False, False, True, False, True, True]


def test_names_of_media_and_missing_columns():
    with pytest.raises(SettingsError, match="a column cannot be called 'pixel_values'"):
        Column("pixel_values", FLOATS)
    batch = lay_out([toy_pack([5])], extras=[PackExtras(columns=(Column("x", FLOATS),))])
    with pytest.raises(CollateError, match="no column 'y'; it has 'x'"):
        batch.column("y")
    with pytest.raises(CollateError, match="'x' has no key in a data set of TRL"):
        trl_example(batch)


@pytest.mark.parametrize("name", ["", 3, "labels"])
def test_names_that_columns_cannot_have(name):
    with pytest.raises(SettingsError, match=r"must be a text and is|is a key of the batch of some trainer"):
        Column(name, np.ones(1))


def test_rows_of_a_batch_have_the_same_columns():
    """Rows of one pack each: a trainer would read the column of one row for all."""
    name = next(name for name, dialect in DIALECTS.items() if dialect.row_per_pack)
    with pytest.raises(CollateError, match="the row with sample 1 has different columns from the first row"):
        PackCollator(dialect=name, pad_to=4)([numbered(toy_pack([2])), toy_pack([3], first_sample=1)])
