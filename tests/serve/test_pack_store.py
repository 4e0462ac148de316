"""A finished pack store by index."""

import pytest

from brimful import (
    open_packs,
)
from brimful.errors import (
    NotAPackStoreError,
    UnfinishedStoreError,
)
from tests.materialize.stores import written


def test_an_unfinished_store_says_so(tmp_path):
    """A reader must not train on half a data set because the job still runs."""
    with pytest.raises(NotAPackStoreError, match="is no pack store"):
        open_packs(tmp_path)
    written(tmp_path, range(1, 30), 32)
    (sorted((tmp_path / "log").iterdir())[-1]).unlink()
    with pytest.raises(UnfinishedStoreError, match=r"is not finished: .* run the command that writes it again"):
        open_packs(tmp_path)
