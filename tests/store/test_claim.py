"""The claim of a directory: shards by size."""

from types import SimpleNamespace
from typing import Any

import pytest

from brimful.store.claim import packs_per_shard

Stub: Any = SimpleNamespace
"""An object of which only some attributes are asked."""


@pytest.mark.parametrize(
    ("shard_bytes", "num_packs", "expected"),
    [(400, 100, 10), (439, 100, 10), (440, 100, 11), (39, 100, 1), (0, 100, 1), (4000, 7, 7)],
)
def test_a_shard_holds_packs_of_four_bytes_a_token(shard_bytes, num_packs, expected):
    plan = Stub(capacity=10, num_packs=num_packs)
    assert packs_per_shard(plan, shard_bytes) == expected
