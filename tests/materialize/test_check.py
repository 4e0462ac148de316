"""A store is checked byte by byte against its log and its plan."""

import shutil

import pytest

from brimful import (
    check_store,
)
from brimful.errors import (
    CorruptFileError,
)
from tests.materialize.stores import written


def test_check_store_finds_a_swapped_shard(tmp_path):
    """A whole, valid shard of another job under the right name has the right size and wrong bytes."""
    written(tmp_path / "a", [5] * 9, 5, seed=None)
    _, _, plan = written(tmp_path / "b", [5] * 9, 5, seed=1)
    mine, theirs = (sorted((tmp_path / name / "shards").iterdir())[0] for name in "ab")
    assert mine.stat().st_size == theirs.stat().st_size
    shutil.copy(mine, theirs)
    with pytest.raises(CorruptFileError, match="other bytes than were committed"):
        check_store(tmp_path / "b", plan=plan)
