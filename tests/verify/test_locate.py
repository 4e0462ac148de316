"""Where samples lie in a batch: certain, or said not to be."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brimful import PackCollator  # noqa: E402
from brimful.errors import CollateError  # noqa: E402
from brimful.testing.toys import toy_tree  # noqa: E402
from brimful.verify import Status, verify_packing  # noqa: E402
from brimful.verify.collated_batch import CollatedBatch  # noqa: E402
from brimful.verify.locate import (  # noqa: E402
    Place,
    SampleLayout,
    _place_media,
    lay_out_markers,
    locate,
    locate_with_markers,
)
from brimful.verify.models import tiny_model  # noqa: E402
from brimful.verify.reference_samples import ReferenceSamples  # noqa: E402
from tests.verify import faults, tree_faults  # noqa: E402
from tests.verify.toys import NeverRun, setup_of  # noqa: E402

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module")
def model():
    return tiny_model("qwen2")


def samples(*rows):
    return [{"input_ids": list(ids), "labels": list(ids)} for ids in rows]


def run(model, collator, rows):
    return verify_packing(model, collator, samples(*rows), attention="eager", gradients=False)


def reversed_order(features):
    return faults.right(features[::-1])


@pytest.mark.parametrize("collator", [faults.right, reversed_order])
@pytest.mark.parametrize(
    "rows",
    [
        [[5, 6], [5, 6], [5, 6, 5, 6], [7, 8, 9]],
        [[5, 6, 5, 6], [5, 6], [7, 8], [5, 6]],
        [[5], [7, 5, 8], [5], [5, 5]],
        [[0, 0], [5, 6, 7], [0]],
    ],
    ids=["cut in two ways", "long first", "inside another", "as padding"],
)
def test_samples_that_can_be_read_out_of_others_are_placed_with_certainty(model, rows, collator):
    """Searched by tokens alone, sample 0 of the first would be found in the long one, and a right batch be called wrong."""
    report = run(model, collator, rows)
    assert report.ok, str(report)


def test_a_repeated_sample_of_one_token_is_no_padding(model):
    """What is left over is all of one token: as padding it would be trained on, and a repeat would go unseen."""
    rows = [[7, 7, 7], [5, 6, 8], [9, 4]]
    report = run(model, lambda features: PackCollator()([*features, features[0]]), rows)
    found = {finding.check: finding.cause for finding in report.failures}
    assert found["complete"] == "sample 0 is repeated"
    assert "padding" not in found


def picky(order):
    """A collator that refuses what it does not know and orders samples itself, so that markers tell nothing."""

    def collate(features):
        if any(token > 9 or token < 4 for feature in features for token in feature["input_ids"]):
            raise ValueError("unknown token")
        return faults.right([features[index] for index in order if index < len(features)])

    return collate


def test_where_markers_are_refused_a_layout_without_an_alternative_is_certain(model):
    """A token of the long sample is also a sample: only one layout leaves nothing but padding."""
    assert run(model, picky([2, 0, 1]), [[5], [4, 9], [7, 5, 8]]).ok


def test_where_nothing_tells_samples_apart_the_report_says_so(model):
    """A verdict on guessed places would be a guess."""
    report = run(model, picky([1, 0, 2]), [[5, 6], [5, 6, 5, 6], [7, 8]])
    assert report.verdict.startswith(
        "NOT PROVEN: isolation was shown with no attention implementation; where the samples"
    )
    assert {finding.check for finding in report.findings} == {"untouched", "complete"}
    assert report.findings[-1].status is Status.NOT_SUPPORTED


@pytest.mark.parametrize(
    ("wanted", "certain"),
    [
        ([[1, 2], [1, 2, 1, 2], [1, 2]], False),
        ([[1, 2, 1], [2, 1, 2], [1, 2]], False),
        ([[1, 2, 1], [2, 1, 2, 1, 2]], True),
        ([[1, 2, 1, 2, 1, 2], [1, 2]], False),
        ([[1, 2, 1, 2], [1, 2, 1, 2]], True),
    ],
)
def test_a_search_knows_whether_there_is_another_layout(wanted, certain):
    """Of the row 1 2 1 2 1 2 1 2; equal samples may change places, as nothing is lost by that."""
    row = np.array([[1, 2] * 4])
    assert locate(row, [np.array(ids) for ids in wanted]).certain is certain


def spans(layout):
    return [place and (place.row, place.start, place.stop) for place in layout.places]


@pytest.mark.parametrize(
    ("rows", "wanted", "found", "certain"),
    [
        ([[5, 6, 7, 8, 9, 0, 0]], [[5, 6, 7], [8, 9]], [(0, 0, 3), (0, 3, 5)], True),
        ([[0, 0, 8, 9], [5, 6, 7, 0]], [[5, 6, 7], [8, 9]], [(1, 0, 3), (0, 2, 4)], True),
        ([[5, 6, 7, 8, 9]], [[5, 6], [8, 9]], [(0, 0, 2), (0, 3, 5)], True),
        ([[5, 6, 1, 8, 9, 2]], [[5, 6], [8, 9]], [None, None], False),
        ([[5, 6]], [[5, 6, 7], [8]], [None, None], False),
        ([[5, 6, 5, 6]], [[5, 6], [5, 6]], [(0, 0, 2), (0, 2, 4)], True),
        ([[5, 6, 5, 6], [5, 6, 0, 0]], [[5, 6]] * 3, [(0, 0, 2), (0, 2, 4), (1, 0, 2)], True),
        ([[5, 5, 5]], [[5, 5], [5]], [(0, 0, 2), (0, 2, 3)], False),
        ([[5, 5, 5]], [[5, 5], [5, 5]], [None, None], False),
        ([[5, 6], [5, 6]], [[5, 6], [5, 6]], [(0, 0, 2), (1, 0, 2)], True),
    ],
)
def test_a_layout_leaves_one_kind_of_token(rows, wanted, found, certain):
    """Each token is claimed once, and what is left over is padding."""
    layout = locate(np.array(rows), [np.array(ids) for ids in wanted])
    assert layout.certain is certain
    if certain or None in found:
        assert spans(layout) == found


def test_equal_samples_that_are_told_apart_are_two_layouts():
    """They differ in their labels, say: the batch treats them differently."""
    row, ids = np.array([[5, 6, 5, 6]]), np.array([5, 6])
    assert not locate(row, [ids, ids], ["a", "b"]).certain
    assert locate(row, [ids, ids], ["a", "a"]).certain


def test_a_search_that_would_not_end_is_uncertain():
    """Many samples that are alike: another layout is not ruled out."""
    row = np.zeros((1, 40), dtype=np.int64)
    ids = [np.zeros(1 + number % 3, dtype=np.int64) for number in range(20)]
    assert not locate(row, ids, list(range(20))).certain
    many = np.arange(402)[None]
    assert not locate(many, list(many.T)[:401]).certain
    assert locate(many, list(many.T)[:400] + [many[0, 400:400]] * 0).places[0] is None
    assert locate(many[:, :400], list(many.T)[:400]).certain


def collated(**fields):
    kwargs = {key: torch.as_tensor(value) for key, value in fields.items()}
    ids = np.atleast_2d(np.asarray(kwargs["input_ids"]))
    places = (Place(0, 0, 2), Place(0, 2, 4), None)
    return CollatedBatch(
        kwargs,
        ids,
        SampleLayout(places, (), np.zeros(ids.shape, bool), True),
        ReferenceSamples(samples([5, 6], [7, 8], [9])).segments,
        bool(fields.get("trees")),
    )


def test_targets_are_the_labels_of_the_next_place():
    """``shift_labels`` lie there already; a batch without labels has none."""
    plain = collated(input_ids=[[5, 6, 7, 8, 0]], labels=[[-100, 6, -100, 8, -100]])
    assert plain.targets.tolist() == [[6, -100, 8, -100, -100]]
    assert (plain.num_targets, plain.shifted) == (2, False)
    assert [part.tolist() for part in plain.terms] == [[0, 2], [6, 8], [1, 1]]
    shifted = collated(input_ids=[[5, 6, 7, 8, 0]], shift_labels=[[6, -100, 8, -100, -100]])
    assert (shifted.targets.tolist(), shifted.shifted) == (plain.targets.tolist(), True)
    assert collated(input_ids=[[5, 6]]).targets is None
    assert collated(input_ids=[[5, 6]]).num_targets == 0
    assert collated(input_ids=[[5, 6]]).terms is None
    assert collated(input_ids=[[5, 6]], trees=1).num_targets == 0


def test_targets_of_trees_count_as_often_as_their_weights():
    """A weight lies where its label lies: at the token, or at the place before it if labels are shifted."""
    weights = [[0, 2, 9, 3, 0]]
    plain = collated(input_ids=[[5, 6, 7, 8, 0]], labels=[[-100, 6, -100, 8, -100]], loss_weights=weights, trees=1)
    assert plain.terms.weights.tolist() == [2, 3]
    assert plain.num_targets == 5
    shifted = collated(
        input_ids=[[5, 6, 7, 8, 0]], shift_labels=[[6, -100, 8, -100, -100]], loss_weights=weights, trees=1
    )
    assert shifted.terms.weights.tolist() == [0, 9]
    named = collated(input_ids=[[5, 6, 7]], loss_index=[0, 0], loss_targets=[6, 7], loss_weights=[2, 1], trees=1)
    assert [part.tolist() for part in named.terms] == [[0, 0], [6, 7], [2, 1]]
    assert collated(input_ids=[[5, 6, 7]], loss_index=[0, 0], loss_targets=[6, 7], trees=1).num_targets == 2
    flat = collated(input_ids=[[5, 6, 7, 8, 0]], labels=[[-100, 6, -100, 8, -100]], loss_weights=weights)
    assert flat.terms.weights.tolist() == [1, 1]
    short = collated(input_ids=[[5, 6, 7]], labels=[[-100, 6, 7]], loss_weights=[1, 2], trees=1)
    with pytest.raises(CollateError, match="loss_weights of the batch are 2, and it has 3 places"):
        _ = short.terms


def test_padding_is_what_is_left_over_if_it_is_of_one_kind():
    batch = collated(input_ids=[[5, 6, 7, 8, 0, 0]])
    assert batch.free.tolist() == [[False] * 4 + [True] * 2]
    assert batch.padding.tolist() == batch.free.tolist()
    assert not collated(input_ids=[[5, 6, 7, 8, 0, 1]]).padding.any()
    assert [sample.index for sample, _ in batch.located] == [0, 1]
    assert batch.per_token("input_ids").shape == (1, 6)
    row = collated(input_ids=[[5, 6, 7, 8]] * 2, position_ids=[0, 1, 2, 3]).per_token("position_ids")
    assert row.tolist() == [[0, 1, 2, 3]] * 2
    assert collated(input_ids=[[5, 6]], position_ids=[[[0, 1]]] * 3).per_token("position_ids").shape == (3, 1, 2)


def test_markers_tell_parts_and_repeats():
    """A sample that is cut has no place and leaves fragments; one that is there twice is a repeat."""
    rows = ReferenceSamples(samples([7, 7, 7], [7, 7], [7]))

    def collate(features):
        ids = [feature["input_ids"] for feature in features]
        return np.array([[*ids[0][:2], *ids[1], *ids[2], *ids[2], 7]])

    layout = lay_out_markers(collate, rows, media_ids=[], reserved_tokens=[7])
    assert layout is not None
    assert spans(layout) == [None, (0, 2, 4), (0, 4, 5)]
    assert layout.repeated == (2,)
    assert layout.fragments.tolist() == [[True] * 2 + [False] * 3 + [True, False]]
    assert lay_out_markers(collate, rows, media_ids=[7], reserved_tokens=[]) is None
    seen = []
    lay_out_markers(
        lambda features: seen.append(features) or collate(features), rows, media_ids=[], reserved_tokens=[0, 3, 7]
    )
    assert [token for feature in seen[0] for token in feature["input_ids"]] == [1, 2, 4, 5, 6, 8]


def test_markers_that_the_batch_contradicts_are_not_believed():
    """The collator lays unknown tokens out in another way; then the tokens are searched."""
    rows = ReferenceSamples(samples([5, 6], [8]))
    markers = SampleLayout((Place(0, 1, 3), Place(0, 0, 1)), (), np.zeros((1, 3), bool), True)
    found = locate_with_markers(np.array([[5, 6, 8]]), rows.segments, markers)
    assert spans(found) == [(0, 0, 2), (0, 2, 3)]
    assert locate_with_markers(np.array([[8, 5, 6]]), rows.segments, markers) is markers
    assert spans(locate_with_markers(np.array([[8, 5, 6, 0]]), rows.segments, markers)) == [(0, 1, 3), (0, 0, 1)]
    half = SampleLayout((None, Place(0, 0, 1)), (), np.zeros((1, 3), bool), True)
    assert spans(locate_with_markers(np.array([[8, 5, 6]]), rows.segments, half)) == [(0, 1, 3), (0, 0, 1)]
    assert locate_with_markers(np.array([[8, 5, 9]]), rows.segments, half) is half


@pytest.mark.parametrize("branch", ["fork", "index"])
def test_paths_of_trees_are_found_by_markers_and_by_what_is_seen(branch):
    """Equal samples share a path, one that ends where others go on has its own, and a repeated token belongs to its branch."""
    packs = [toy_tree([[5, 6, 7, 8], [5, 6, 9], [5, 6], [5, 6, 9], [4]]), toy_tree([[5, 6, 7]])]
    for fault in (lambda batch, packs: batch, faults_of_markers):
        batch = setup_of(tree_faults.Trees(fault, branch), NeverRun(), packs).batch
        assert batch.layout.certain
        assert batch.layout.repeated == ()
        assert len(batch.located) == 6
        row, depth = batch.kwargs["input_ids"][0], batch.kwargs["position_ids"][0]
        for sample, place in batch.located:
            assert row[place.columns].tolist() == sample.ids.tolist()
            assert depth[place.columns].tolist() == list(range(len(sample.ids)))
            assert (place.start, place.stop - 1) == (place.columns[0], place.columns[-1])
    last = setup_of(tree_faults.Trees(branch=branch), NeverRun(), packs).batch.located[5][1].columns
    assert last.min() >= 6


def faults_of_markers(batch, packs):
    """A collator that looks at tokens and refuses markers."""
    if int(batch["input_ids"].max()) > 9 or not set(batch["input_ids"][0].tolist()) <= {0, *range(4, 10)}:
        raise ValueError("unknown token")
    return batch


def test_samples_that_lie_one_by_one_are_found_as_well_as_a_tree():
    """A collator of trees that shares nothing, and one that lays a sample out twice."""
    rows = [{"input_ids": ids} for ids in ([5, 6, 7, 8], [5, 6, 9], [5, 6])]
    reference = ReferenceSamples(rows, trees=True)

    def collate(features, again=()):
        ids = [feature["input_ids"] for feature in features]
        return np.array([[token for one in [*ids, *(ids[number] for number in again)] for token in one]])

    layout = lay_out_markers(collate, reference, media_ids=[], reserved_tokens=range(10))
    assert [place.columns.tolist() for place in layout.places] == [[0, 1, 2, 3], [4, 5, 6], [7, 8]]
    assert not layout.fragments.any()
    twice = lay_out_markers(lambda features: collate(features, [1]), reference, media_ids=[], reserved_tokens=range(10))
    assert 1 in twice.repeated
    assert 0 not in twice.repeated
    assert twice.fragments.sum() == 3


@pytest.mark.parametrize(
    ("path", "flat", "placed"),
    [
        ([0, -1, -1, 3], [9, 1, 1, 8], [0, 1, 2, 3]),
        ([-1, -1, 2, 3], [1, 1, 9, 8], [0, 1, 2, 3]),
        ([2, -1, -1, -1], [0, 0, 9, 1, 1, 1], [2, 3, 4, 5]),
        ([0, -1, -1, 5], [9, 1, 0, 0, 1, 8], [0, 1, 4, 5]),
        ([0, -1, 2, 3], [9, 7, 9, 8], [0, -1, 2, 3]),
    ],
)
def test_tokens_of_media_lie_beside_the_text_of_their_part(path, flat, placed):
    """They are all alike, so the nearest token of text says which is which."""
    ids = np.array([1 if place < 0 else 50 + place for place in path])
    path = np.array(path)
    _place_media(path, ids, np.array(flat), [4])
    assert path.tolist() == placed


def test_a_part_of_media_alone_follows_the_part_before_it():
    """A branch that is a picture has no text of its own to be found by."""
    ids, path = np.array([50, 51, 1, 1]), np.array([3, 4, -1, -1])
    _place_media(path, ids, np.array([0, 1, 1, 50, 51, 1, 1, 1]), [2, 2])
    assert path.tolist() == [3, 4, 5, 6]
