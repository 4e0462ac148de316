"""The claim of a directory: shards by size, the root of references, and stores of earlier versions."""

from types import SimpleNamespace
from typing import Any

import pytest

from brimful.materialize.claim import media_root_of, packs_per_shard

Stub: Any = SimpleNamespace
"""An object of which only some attributes are asked."""


@pytest.mark.parametrize(
    ("shard_bytes", "num_packs", "expected"),
    [(400, 100, 10), (439, 100, 10), (440, 100, 11), (39, 100, 1), (0, 100, 1), (4000, 7, 7)],
)
def test_a_shard_holds_packs_of_four_bytes_a_token(shard_bytes, num_packs, expected):
    plan = Stub(capacity=10, num_packs=num_packs)
    assert packs_per_shard(plan, shard_bytes) == expected


@pytest.mark.parametrize(
    ("directories", "root"),
    [(["/data/a", "/data/b"], "/data"), (["/data/a"], "/data/a"), (["/a", "/b"], ""), ([], ""), (["/"], "")],
)
def test_the_root_of_media(directories, root):
    """The directory that holds all of them; none where that is the whole file system."""
    assert media_root_of(Stub(media_directories=directories)) == root
