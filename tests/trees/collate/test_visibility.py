"""What a token of a row of trees sees: its path, as intervals and as runs with gathered keys; and the terms of the loss:
one for each trained token, and the way back to the samples.
"""

from hypothesis import given

from brimful.collate import Padding, lay_out
from brimful.collate.torch import PackCollator
from brimful.testing.toys import toy_tree
from brimful.trees.collate.visibility import attention_runs, loss_terms, predictors, terms_of_samples
from brimful.trees.masks import tree_mask
from tests.trees.collate.reading import contexts
from tests.trees.test_pack_tree import SAMPLES


def row_of(samples, **padding):
    tokens, masks = zip(*samples, strict=True)
    return lay_out([toy_tree(tokens, masks), toy_tree(tokens)], padding=Padding(**padding))


@given(SAMPLES)
def test_the_mask_shows_each_token_its_path(samples):
    """Two trees and the padding, each apart from the others."""
    tokens, masks = zip(*samples, strict=True)
    batch = row_of(samples, multiple_of=16)
    given = PackCollator(dialect="dense_mask", branch="index", padding=Padding(multiple_of=16))(
        [toy_tree(tokens, masks), toy_tree(tokens)]
    )
    rows = given["attention_mask"][0, 0]
    assert [row.nonzero()[:, 0].tolist() for row in rows] == contexts(batch)
    assert tree_mask(given["tree_out"]).equal(rows)
    assert given["tree_in"].tolist() == list(range(len(rows)))
    assert given["parents"].tolist() == batch.sharing.parents.tolist()


@given(SAMPLES)
def test_runs_show_each_token_its_path(samples):
    """Causal from the bottom right: query i of a run of n sees its keys up to the last n - 1 - i."""
    batch = row_of(samples, multiple_of=16)
    runs = attention_runs(batch)
    seen = []
    for run in range(len(runs.cu_seqlens_q) - 1):
        queries = range(*runs.cu_seqlens_q[run : run + 2].tolist())
        keys = runs.kv_index[slice(*runs.cu_seqlens_k[run : run + 2].tolist())].tolist()
        assert keys[len(keys) - len(queries) :] == list(queries)
        seen += [keys[: len(keys) - after] for after in range(len(queries) - 1, -1, -1)]
    assert seen == contexts(batch)


@given(SAMPLES)
def test_the_place_before_on_the_path_predicts_each_token(samples):
    batch = row_of(samples)
    before = [path[-2] if len(path) > 1 else -1 for path in contexts(batch)]
    assert predictors(batch).tolist() == before


def test_a_dialogue_is_one_run_for_its_last_turn():
    """Turns that continue each other need no gather of their own: only what parts from them does."""
    turns = [list(range(10 * turn)) for turn in range(1, 21)]
    strip = [*range(15), 500, 501]
    runs = attention_runs(lay_out([toy_tree([*turns, strip])]))
    assert runs.cu_seqlens_q.tolist() == [0, 200, 202]
    assert (runs.max_length_q, runs.max_length_k) == (200, 200)
    assert runs.kv_index.tolist() == [*range(200), *range(15), 200, 201]


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
