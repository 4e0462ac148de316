"""Terms of the loss: one for each trained token, and the way back to the samples."""

from hypothesis import given

from brimful.collate import lay_out
from brimful.collate.torch import PackCollator
from brimful.testing.toys import toy_tree
from brimful.trees.collate.visibility import loss_terms, terms_of_samples
from tests.trees.test_pack_tree import SAMPLES


@given(SAMPLES)
def test_terms_of_each_sample_are_its_targets(samples):
    """In its order; each term is of the first sample that trains it."""
    tokens, masks = zip(*samples, strict=True)
    pack = toy_tree(tokens, masks)
    batch = lay_out([pack])
    terms, of_samples = loss_terms(batch), terms_of_samples(batch)
    ids = pack.sample_ids[pack.sharing.ends].tolist()
    owners = {}
    for sample, name in enumerate(ids):
        own = of_samples.row(sample).tolist()
        assert terms.targets[own].tolist() == [
            token for token, target in list(zip(tokens[name], masks[name], strict=True))[1:] if target
        ]
        for term in own:
            owners.setdefault(term, sample)
    assert terms.samples.tolist() == [owners[term] for term in range(len(terms.targets))]


def test_the_batch_has_terms_in_place_of_labels():
    """A model with labels would shift them, and predict a branch from its sibling."""
    batch = PackCollator(dialect="transformers_tree", branch="index")([toy_tree([[5, 6, 7], [5, 6, 8]])])
    assert "labels" not in batch
    assert batch["loss_index"].tolist() == [0, 1, 1]
    assert batch["loss_targets"].tolist() == [6, 7, 8]
    assert batch["loss_weights"].tolist() == [2.0, 1.0, 1.0]
    assert batch["loss_samples"].tolist() == [0, 0, 1]


def test_a_row_without_targets_has_no_terms():
    terms = loss_terms(lay_out([toy_tree([[5, 6], [5, 7]], [[True, False]] * 2)]))
    assert len(terms.index) == len(terms.weights) == 0
