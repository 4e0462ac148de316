"""Where samples lie in a batch: certain, or said not to be."""

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

from brimful import PackCollator  # noqa: E402
from brimful.verify import Status, verify_packing  # noqa: E402
from brimful.verify.locate import locate  # noqa: E402
from brimful.verify.models import tiny_model  # noqa: E402
from tests.verify import faults  # noqa: E402

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
    """What is left over is all of one token: as padding it would be trained on, and nobody would look for a repeat."""
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
