"""Transformers after ``use_tree_attention``: flat rows are the ones of ``transformers``."""

import pytest

torch = pytest.importorskip("torch")

from brimful import PackCollator  # noqa: E402
from brimful.testing.toys import toy_pack  # noqa: E402
from tests.collate.dialects import test_transformers  # noqa: E402


class TestTransformersTree(test_transformers.TestTransformers):
    dialect = "transformers_tree"


def test_a_flat_row_is_the_one_of_transformers():
    tree, flat = (PackCollator(dialect=name)([toy_pack([4, 2])]) for name in ("transformers_tree", "transformers"))
    assert tree.keys() == flat.keys()
    assert all(torch.equal(torch.as_tensor(tree[key]), torch.as_tensor(flat[key])) for key in flat)
