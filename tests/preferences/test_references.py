"""Reference log probabilities are found by sample and content, in the files of a whole pass."""

from __future__ import annotations

import pickle
import shutil
import tracemalloc
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("torch")


from brimful.base.tables import open_table, write_table
from brimful.errors import CorruptFileError, PlanMismatchError
from brimful.preferences.references import ReferenceLogps, contents_of
from brimful.testing.toys import toy_pack

GOLDEN = Path(__file__).parents[1] / "golden/references_1"


def write_parts(folder, sample_ids, contents, logps, num_parts):
    """Files of a pass that has ended."""
    folder.mkdir(parents=True)
    description = {"kind": "reference_logps", "version": 1, "num_files": num_parts, "model": "m" * 32}
    for number, rows in enumerate(np.array_split(np.arange(len(sample_ids)), num_parts)):
        columns = {"sample_ids": sample_ids[rows], "logps": logps[rows], "contents": contents[rows]}
        write_table(folder / f"{number:08d}.arrow", columns, description)


def large_pass(directory, count=100_000):
    """Samples in random order; the last of them is sample 7 of a pack."""
    pack = toy_pack([4, 2], first_sample=7)
    sample_ids = np.random.default_rng(0).permutation(count).astype(np.int64)
    contents = sample_ids * 3 + 1
    logps = -sample_ids.astype(np.float32)
    for sample_id, content in zip(pack.sample_ids, contents_of(pack), strict=True):
        contents[sample_ids == sample_id] = content
    write_parts(directory / "model-packs", sample_ids, contents, logps, 3)
    return pack


@given(
    rows=st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3)), max_size=20, unique=True),
    asked=st.tuples(st.integers(0, 6), st.integers(0, 4)),
)
def test_what_is_there_is_found_and_nothing_else(rows, asked):
    """Samples with several contents, in any order: a search that stops next to the row gives another sample's number."""
    ids, contents = np.array(rows, dtype=np.int64).reshape(-1, 2).T
    logps = np.arange(len(rows), dtype=np.float32)
    table = ReferenceLogps(ids, logps, contents)
    expected = dict(zip(rows, logps.tolist(), strict=True)).get(asked)
    if expected is not None:
        assert table._logp(*asked) == expected
        return
    reason = "had other tokens or targets" if asked[0] in ids else "has no log probability"
    with pytest.raises(PlanMismatchError, match=f"sample {asked[0]} {reason}"):
        table._logp(*asked)


def test_numbers_are_found_in_any_part_and_process(tmp_path):
    """Twenty bytes a segment, here and in a worker."""
    pack = large_pass(tmp_path)
    tracemalloc.start()
    opened = ReferenceLogps.open(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (len(opened), opened.of(pack).tolist()) == (100_000, [-7.0, -8.0])
    assert peak < 60 * len(opened)
    pickled = pickle.dumps(opened)
    assert len(pickled) < 21 * len(opened)
    assert pickle.loads(pickled).of(pack).tolist() == [-7.0, -8.0]
    with pytest.raises(PlanMismatchError, match="sample 7 had other tokens or targets"):
        opened.of(toy_pack([5], first_sample=7))


@pytest.mark.parametrize("column", ["sample_ids", "contents", "logps"])
def test_a_damaged_file_is_refused(tmp_path, column):
    """A search in damaged ids would find nothing, or the numbers of another sample."""
    large_pass(tmp_path, 1000)
    path = tmp_path / "model-packs" / "00000001.arrow"
    values = np.ascontiguousarray(open_table(path).flat(column)).tobytes()
    data = bytearray(path.read_bytes())
    data[data.index(values) + len(values) // 2] ^= 1
    path.unlink()
    path.write_bytes(data)
    message = f"00000001.arrow is damaged: column '{column}' has other numbers than were written"
    with pytest.raises(CorruptFileError, match=message):
        ReferenceLogps.open(tmp_path)


def test_a_pass_of_another_form_or_without_its_end_is_refused(tmp_path):
    large_pass(tmp_path, 10)
    path = tmp_path / "model-packs" / "00000002.arrow"
    path.unlink()
    with pytest.raises(CorruptFileError, match="has 2 files: run compute_references to its end"):
        ReferenceLogps.open(tmp_path)
    write_table(path, {"sample_ids": np.arange(3)}, {"kind": "plan", "version": 1})
    with pytest.raises(CorruptFileError, match="holds no reference log probabilities of this version"):
        ReferenceLogps.open(tmp_path)


def test_numbers_that_were_written_before_open(tmp_path):
    """Files of two packs."""
    shutil.copytree(GOLDEN, tmp_path / "references")
    opened = ReferenceLogps.open(tmp_path / "references")
    assert len(opened) == 4
    assert opened.of(toy_pack([4, 2])).tolist() == [-5.0, -1.5]
    assert opened.of(toy_pack([3, 3], first_sample=2)).tolist() == [-2.0, -0.25]
