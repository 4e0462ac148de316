"""Prefixes that samples share: exact, the same in both forms, and kept with the table of lengths."""

from __future__ import annotations

import numpy as np
import pytest

from brimful.base.tables import open_table
from brimful.errors import InvalidLengthsError
from brimful.lengths import LengthTable, Prefixes, find_prefixes


def _prefixes(**amounts: list[int]) -> Prefixes:
    found = find_prefixes(np.array([5, 6, 7, 8, 5, 6, 9], np.int32), np.array([0, 3, 4, 7]), least=2)
    return Prefixes(
        found.order, found.shared, found.least, {name: np.array(a, np.int32) for name, a in amounts.items()}
    )


def test_a_table_keeps_its_prefixes(tmp_path):
    """Without it a plan of a saved table would compute every trunk again for every sample."""
    tokens = {"tokens": np.array([3, 1, 3], np.int32), "patches": np.array([4, 0, 4], np.int32)}
    table = LengthTable(tokens, prefixes=_prefixes(patches=[0, 4, 0]))
    table.save(tmp_path / "t.arrow")
    again = LengthTable.open(tmp_path / "t.arrow")
    assert again.prefixes is not None
    assert (again.prefixes.order.dtype, again.prefixes.order.tolist()) == (np.int64, [0, 2, 1])
    assert (again.prefixes.shared.dtype, again.prefixes.shared.tolist()) == (np.int32, [0, 2, 0])
    assert again.prefixes.least == 2
    assert {name: a.tolist() for name, a in again.prefixes.amounts.items()} == {"patches": [0, 4, 0]}
    assert again.fingerprint == table.fingerprint


def test_prefixes_are_in_the_fingerprint_and_a_table_without_them_is_what_it_was(tmp_path):
    """Without it lengths of other trees would make one plan, or every old plan would be made again."""
    tokens = {"tokens": np.array([3, 1, 3], np.int32)}
    plain, found = LengthTable(tokens), _prefixes()
    assert plain.fingerprint == "45dc056583d41d1365736c89b834975b"
    others = [
        LengthTable(tokens, prefixes=prefixes)
        for prefixes in (
            found,
            _prefixes(patches=[0, 4, 0]),
            Prefixes(found.order, found.shared, 1),
            Prefixes(found.order[::-1], found.shared, 2),
            Prefixes(found.order, found.shared * 0, 2),
        )
    ]
    assert len({table.fingerprint for table in [plain, *others]}) == 6
    plain.save(tmp_path / "t.arrow")
    saved = open_table(tmp_path / "t.arrow")
    assert saved.names == ["tokens"]
    assert sorted(saved.description) == ["budgets", "fingerprint", "kind", "provenance", "rejects", "version"]


def test_prefixes_of_other_samples_are_refused():
    """Without it the samples of a tree would be any."""
    with pytest.raises(InvalidLengthsError, match=r"^the prefixes are of 3 samples and the lengths of 2$"):
        LengthTable({"tokens": np.array([3, 1], np.int32)}, prefixes=_prefixes())
