"""Tokens of samples on disk."""

from __future__ import annotations

import pickle
from dataclasses import replace

import numpy as np
import pytest

from brimful.base import tables
from brimful.encode import EncodedSample, encoded
from brimful.encode.encoded import EncodedBatch, StoredSamples, is_stored, write_stored
from brimful.errors import BadSampleError, CorruptFileError
from brimful.media import MediaKind, Medium, PlacedMedium


def _encoded(ids, mask):
    return EncodedSample(np.array(ids, dtype=np.int32), np.array(mask, dtype=bool))


def _store(path, samples):
    """Store samples; None is a rejected one."""
    batch = EncodedBatch.of([BadSampleError("", sample_id=0) if sample is None else sample for sample in samples])
    write_stored(path, batch.ids, batch.loss_mask)


def test_stored_samples_come_back_by_id(tmp_path):
    """Without it packs would be written with tokens of a neighbour, or lose the targets of token 0."""
    first = [_encoded([0, 0, 7], [True, False, True]), None, _encoded([151643], [False])]
    second = [_encoded([1, 2], [True, True])]
    _store(tmp_path / "0.arrow", first)
    _store(tmp_path / "3.arrow", second)
    stored = StoredSamples([(0, str(tmp_path / "0.arrow")), (3, str(tmp_path / "3.arrow"))])
    for reader in (stored, pickle.loads(pickle.dumps(stored))):
        for sample_id, expected in ((3, second[0]), (0, first[0]), (2, first[2])):
            sample = reader[sample_id]
            assert (sample.input_ids.dtype, sample.input_ids.tolist()) == (np.int32, expected.input_ids.tolist())
            assert sample.loss_mask.tolist() == expected.loss_mask.tolist()
        assert len(reader[1]) == 0


@pytest.mark.parametrize("ids", [[], [0], [0, 1, 2, 3], [0, 2, 3], [2], [1, 3]])
def test_tokens_of_many_samples_are_the_ones_of_each(tmp_path, ids):
    """In runs of neighbors, across files and over gaps."""
    _store(tmp_path / "0.arrow", [_encoded([0, 0, 7], [True] * 3), None, _encoded([151643], [False])])
    _store(tmp_path / "3.arrow", [_encoded([1, 2], [True, True]), _encoded([9], [True])])
    stored = StoredSamples([(0, str(tmp_path / "0.arrow")), (3, str(tmp_path / "3.arrow"))])
    tokens = stored.tokens(np.array(ids, dtype=np.int64))
    assert tokens.values.dtype == np.int32
    rows = [tokens.row(index).tolist() for index in range(len(tokens))]
    assert rows == [sample.input_ids.tolist() for sample in stored.read(ids)]


def test_more_files_than_may_be_open(tmp_path, monkeypatch):
    """Without it a data set of many blocks would run out of file handles."""
    monkeypatch.setattr("brimful.encode.encoded._MAX_OPEN_FILES", 2)
    parts = [(number, str(tmp_path / f"{number}.arrow")) for number in range(5)]
    for number, path in parts:
        _store(path, [_encoded([number], [True])])
    stored = StoredSamples(parts)
    assert [stored[number].input_ids.tolist() for number in (4, 0, 3, 1, 2, 0)] == [[4], [0], [3], [1], [2], [0]]
    assert len(stored._open_files) == 2


def test_every_flipped_byte_of_stored_tokens_is_found_or_changes_nothing(tmp_path):
    """Without it a damaged file would be packed as other tokens or targets, and its store pass every check."""
    path = tmp_path / "a.arrow"
    samples = [_encoded([5, 6, 7], [False, True, True]), None, _encoded([8], [False])]
    _store(path, samples)
    assert (is_stored(path, 3), is_stored(path, 2), is_stored(tmp_path / "b.arrow", 3)) == (True, False, False)
    data, found = path.read_bytes(), 0
    expected = [([5, 6, 7], [False, True, True]), ([], []), ([8], [False])]
    for at in range(0, len(data), 3):
        path.write_bytes(data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :])
        stored = StoredSamples([(10, str(path))])
        try:
            tokens = [(row.input_ids.tolist(), row.loss_mask.tolist()) for row in stored.read([10, 11, 12])]
        except CorruptFileError as error:
            tokens, found = expected, found + 1
            assert str(error).endswith("run the same command again, which rebuilds this file")  # noqa: PT017
            assert not is_stored(path, 3)
        assert tokens == expected, f"byte {at}"
    assert found > len(data) / 6


def test_stored_tokens_are_checked_once_in_a_process(tmp_path, monkeypatch):
    """Without it a data set of more files than stay open would be read whole for every sample."""
    monkeypatch.setattr(encoded, "_MAX_OPEN_FILES", 1)
    parts = []
    for number in range(3):
        _store(tmp_path / f"{number}.arrow", [_encoded([number], [True])])
        parts.append((number, str(tmp_path / f"{number}.arrow")))
    asked = []
    real = tables._checksum
    monkeypatch.setattr(tables, "_checksum", lambda column: asked.append(column) or real(column))
    stored = StoredSamples(parts)
    assert [row.input_ids.tolist() for row in stored.read([0, 1, 2, 0, 1, 2])] == [[0], [1], [2]] * 2
    assert len(asked) == 6, "ids and masks"


def _picture(name, start, **place):
    medium = Medium(MediaKind.IMAGE, name, **place)
    return PlacedMedium(medium, start, 2, num_tokens=2, num_patches=8, grid=(1, 2, 4))


def test_media_are_kept_with_their_tokens(tmp_path):
    """Without it samples with pictures would be encoded twice. Bytes that came with a row are left in the row."""
    path = tmp_path / "a.png"
    path.write_bytes(b"abc")
    in_file, in_row = _picture("a.png", 1, path=str(path)), _picture("", 4, data=b"xyz")
    in_file = replace(in_file, stamp=in_file.medium.stamp())
    batch = EncodedBatch.of([_encoded([1, 2, 3, 4, 5, 6], [False] * 6), _encoded([7], [True])])
    write_stored(tmp_path / "a", batch.ids, batch.loss_mask, {0: [in_file, in_row]})
    stored = StoredSamples([(10, str(tmp_path / "a"))])
    kept = [sample.attachments for sample in pickle.loads(pickle.dumps(stored)).read([11, 10])]
    assert kept == [(), (in_file, _picture("", 4))]
    assert [item.stamp for item in kept[1]] == [in_file.stamp, 0]
    assert (stored[11].input_ids.tolist(), is_stored(tmp_path / "a", 2)) == ([7], True)
    path.write_bytes(b"abcd")
    assert not is_stored(tmp_path / "a", 2), "tokens of a picture that is another by now"
    path.unlink()
    assert not is_stored(tmp_path / "a", 2)


def test_kept_media_that_were_damaged_are_found(tmp_path):
    """Without it a picture would be packed in another place."""
    batch = EncodedBatch.of([_encoded([1, 2], [False] * 2)])
    write_stored(tmp_path / "a", batch.ids, batch.loss_mask, {0: [_picture("name", 0)]})
    data = (tmp_path / "a").read_bytes()
    (tmp_path / "a").write_bytes(data.replace(b'"start":0', b'"start":1'))
    with pytest.raises(CorruptFileError, match="run the same command again, which rebuilds this file"):
        StoredSamples([(0, str(tmp_path / "a"))]).read([0])
    assert not is_stored(tmp_path / "a", 1)


def test_files_of_texts_have_no_column_of_media(tmp_path):
    """Jobs on texts leave the files that they left before."""
    _store(tmp_path / "a", [_encoded([1], [True])])
    assert tables.open_table(tmp_path / "a").names == ["ids", "loss_mask"]
    assert StoredSamples([(0, str(tmp_path / "a"))])[0].attachments == ()
