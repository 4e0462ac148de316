"""What a row of trees says about visible tokens is one thing in each of its forms: ranges, runs, masks, blocks."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers", minversion="5.20")
from torch.nn.attention.flex_attention import create_block_mask  # noqa: E402

from brimful import PackCollator  # noqa: E402
from brimful.collate import Padding  # noqa: E402
from brimful.testing.toys import toy_tree  # noqa: E402
from brimful.verify.tree_rows import claims_of, paths_of  # noqa: E402
from tests.trees.collate.reading import forest  # noqa: E402
from tests.verify import tree_faults as faults  # noqa: E402
from tests.verify.toys import NeverRun, setup_of  # noqa: E402


def batch_of(seed):
    packs = [toy_tree(*forest(seed, roots=1 + seed % 3, depth=3 - seed % 2))]
    collator = PackCollator(dialect="transformers_tree", padding=Padding(multiple_of=16))
    return setup_of(collator, NeverRun(), packs).batch


@pytest.mark.parametrize("seed", range(4))
def test_all_claims_of_a_right_row_are_the_paths_of_its_samples(seed):
    """Also as a mask of pairs, an additive one, and one of FlexAttention."""
    batch = batch_of(seed)
    width = batch.ids.shape[1]
    paths = paths_of(batch)
    real = ~batch.padding[0]
    claims = list(claims_of(batch.kwargs, width))
    assert [claim.name for claim in claims] == ["tree_in, tree_out", "tree_kv_index"]
    mask = torch.from_numpy(paths.visible)
    blocks = create_block_mask(lambda b, h, query, key: mask[query, key], None, None, width, width, device="cpu")
    for form in (mask[None, None], torch.where(mask, 0.0, -1e9), blocks):
        (claim,) = claims_of({"attention_mask": form}, width)
        assert claim.name == "attention_mask"
        claims.append(claim)
    for claim in claims:
        assert np.array_equal(claim.visible[real], paths.visible[real]), claim.name


def test_windows_of_layers_have_masks_of_their_own():
    """A layer with a window sees the last tokens of each path, and one without sees all."""
    paths = paths_of(batch_of(1))
    kinds = {"full_attention": None, "sliding_attention": 3}
    masks = {kind: torch.from_numpy(paths.within(window)) for kind, window in kinds.items()}
    claims = list(claims_of({"attention_mask": masks}, len(paths.depths)))
    assert [(claim.name, claim.kind) for claim in claims] == [(f"attention_mask of {kind}", kind) for kind in kinds]
    assert np.array_equal(claims[0].visible, paths.visible)
    assert np.array_equal(claims[1].visible, paths.visible & (paths.depths[:, None] - paths.depths < 3))


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
