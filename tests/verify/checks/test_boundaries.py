"""What tells a layer where samples begin: right at every boundary, or found."""

from itertools import pairwise, product
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from brimful.verify.checks.boundaries import check_boundaries  # noqa: E402
from brimful.verify.verify_report import Status  # noqa: E402

LENGTHS = [2, 1, 3]


def _setup(seq_idx):
    """A batch of one row with these numbers of samples, and nothing else that tells boundaries."""
    ends = np.cumsum(LENGTHS).tolist()
    places = [SimpleNamespace(row=0, start=end - size, stop=end) for end, size in zip(ends, LENGTHS, strict=True)]
    batch: Any = SimpleNamespace(
        kwargs={"seq_idx": torch.tensor([seq_idx])},
        has_trees=False,
        ids=np.arange(len(seq_idx))[None],
        located=list(enumerate(places)),
        per_token=lambda name: np.array([seq_idx]),
    )
    return SimpleNamespace(batch=batch)


def test_seq_idx_changes_at_every_boundary_and_nowhere_else():
    """Wrong at one of several is enough for a recurrent layer to carry its state from a sample into the next."""
    for seq_idx in product(range(3), repeat=sum(LENGTHS)):
        numbers = np.split(np.array(seq_idx), np.cumsum(LENGTHS)[:-1])
        is_constant = all(len(set(one)) == 1 for one in numbers)
        is_right = is_constant and all(one[-1] != other[0] for one, other in pairwise(numbers))
        assert (check_boundaries(_setup(seq_idx)).status is Status.PASS) == is_right, seq_idx
