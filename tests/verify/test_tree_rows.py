"""What a row of trees says about visible tokens is one thing in each of its forms: ranges, runs, masks, blocks."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.20")

from brimful import PackCollator  # noqa: E402
from brimful.collate import Padding  # noqa: E402
from brimful.testing.toys import toy_tree  # noqa: E402
from brimful.verify.tree_rows import (  # noqa: E402
    MAX_PAIRED_TOKENS,
    claims_of,
    first_visibility,
    paths_of,
    right_attention,
)
from tests.trees.collate.reading import forest  # noqa: E402
from tests.verify import tree_faults as faults  # noqa: E402
from tests.verify.toys import NeverRun, setup_of  # noqa: E402


class Model(NeverRun):
    def __init__(self, name, **config):
        super().__init__(_attn_implementation=name, **config)
        self.config.get_text_config = lambda: self.config

    def set_attn_implementation(self, name):
        raise AssertionError(name)


def batch_of(seed):
    packs = [toy_tree(*forest(seed, roots=1 + seed % 3, depth=3 - seed % 2))]
    collator = PackCollator(dialect="transformers_tree", padding=Padding(multiple_of=16))
    return setup_of(collator, NeverRun(), packs).batch


@pytest.mark.parametrize("seed", range(4))
def test_all_claims_of_a_right_row_are_the_paths_of_its_samples(seed):
    """Also after a way through the forms that ``verify`` repairs a batch with: runs, masks of pairs, additive ones, blocks."""
    batch = batch_of(seed)
    width = batch.ids.shape[1]
    paths = paths_of(batch)
    real = ~batch.padding[0]
    claims = list(claims_of(batch.kwargs, width))
    assert [claim.name for claim in claims] == ["tree_in, tree_out", "tree_kv_index"]
    forms = {
        "brimful_tree": "tree_kv_index",
        "sdpa": "attention_mask",
        "eager": "attention_mask",
        "flex_attention": "attention_mask",
    }
    for name, key in forms.items():
        again = list(claims_of(right_attention(Model(name), batch), width))
        assert [claim.name for claim in again] == [key]
        claims += again
    for claim in claims:
        assert np.array_equal(claim.visible[real], paths.visible[real]), claim.name
    visible = first_visibility(batch.kwargs, 1, width)
    assert visible is not None
    assert np.array_equal(visible, claims[0].visible)
    assert first_visibility(batch.kwargs, 2, width) is None
    assert first_visibility(batch.kwargs, 1, MAX_PAIRED_TOKENS + 1) is None
    assert first_visibility({}, 1, width) is None


def test_windows_of_layers_are_masks_of_their_own():
    """A layer with a window gets the last tokens of each path, and one without gets all."""
    batch = batch_of(1)
    paths = paths_of(batch)
    kinds = ["full_attention", "sliding_attention"]
    masks = right_attention(Model("sdpa", sliding_window=3, layer_types=kinds), batch)["attention_mask"]
    assert list(masks) == kinds
    near = paths.depths[:, None] - paths.depths < 3
    assert np.array_equal(masks["full_attention"][0, 0].numpy(), paths.visible)
    assert np.array_equal(masks["sliding_attention"][0, 0].numpy(), paths.visible & near)
    one = right_attention(Model("sdpa", sliding_window=3), batch)["attention_mask"]
    assert np.array_equal(one[0, 0].numpy(), paths.visible & near)
    plain = right_attention(NeverRun(), batch)["attention_mask"]
    assert np.array_equal(plain[0, 0].numpy(), paths.visible)
    named = {claim.kind: claim for claim in claims_of({"attention_mask": masks}, len(near))}
    assert [named[kind].name for kind in kinds] == [f"attention_mask of {kind}" for kind in kinds]


def test_depths_count_along_the_path_and_padding_sees_itself():
    batch = setup_of(faults.Trees(), NeverRun(), [toy_tree([[5, 6, 7], [5, 6, 8], [9]])]).batch
    paths = paths_of(batch)
    assert paths.depths[:6].tolist() == batch.kwargs["position_ids"][0, :6].tolist()
    assert paths.visible.sum(axis=1)[:6].tolist() == (batch.kwargs["position_ids"][0, :6] + 1).tolist()
    assert paths.visible[6:].sum() == len(paths.depths) - 6


def test_masks_of_other_shapes_say_nothing():
    """A mask of tokens, as of padding, is none of pairs."""
    assert not list(claims_of({"attention_mask": torch.ones(1, 5)}, 5))
    assert not list(claims_of({"attention_mask": torch.ones(1, 1, 5, 6)}, 5))
    assert not list(claims_of({"tree_in": torch.arange(4), "tree_out": torch.arange(4)}, 5))
    assert not list(claims_of({"tree_in": torch.arange(5)}, 5))
    additive = torch.zeros(1, 1, 2, 2)
    additive[0, 0, 0, 1] = -1e4
    (claim,) = claims_of({"attention_mask": additive}, 2)
    assert claim.visible.tolist() == [[True, False], [True, True]]
    (claim,) = claims_of({"attention_mask": torch.tensor([[[[1, 0], [1, 1]]]])}, 2)
    assert claim.visible.tolist() == [[True, False], [True, True]]
    for shape in ((2, 2), (1, 2, 2), (1, 1, 2, 2)):
        (claim,) = claims_of({"attention_mask": additive.reshape(shape)}, 2)
        assert claim.visible.tolist() == [[True, False], [True, True]]
