"""Positions that are not the ones of a sample alone, told without a run of the model."""

import pytest

torch = pytest.importorskip("torch")

from brimful.testing.toys import toy_tree  # noqa: E402
from tests.verify import faults, tree_faults  # noqa: E402
from tests.verify.toys import IDS, NeverRun, arrays, samples  # noqa: E402

ROWS = samples(*[[number] * 6 for number in (5, 6, 7)])


def found(positions, rows=None, model=None):
    """The finding of positions, with these in the batch; None leaves them out."""

    def collate(features):
        batch = faults.without(faults.right(features), "position_ids")
        return batch if positions is None else {**batch, "position_ids": torch.tensor(positions)}

    return arrays(collate, rows, model)["positions"]


def along(*lengths, start=0):
    return [place + start for length in lengths for place in range(length)]


def test_right_positions_pass_in_each_of_their_forms():
    """One row for all, three or four of mRoPE, and the start that a type of model has."""
    row = along(7, 9, 1, 4, 4)
    assert found([row]).detail == "from 0 in every sample"
    assert found([[row]] * 3).passed
    assert found([[row]] * 4).passed
    assert found(row).passed
    roberta = NeverRun(model_type="roberta", pad_token_id=1)
    assert found([along(7, 9, 1, 4, 4, start=2)], model=roberta).detail == "from 2 in every sample"
    assert "alone it has [2, 3, 4, 5]" in found([row], model=roberta).detail


def test_rows_in_space_are_the_ones_of_each_sample():
    """A sample that brings three rows has them in the batch, after a row of text positions if it has four."""
    rows = samples()
    space = [[0, 0, 0, 1, 1, 1, 2], [3, 3, 3, 3, 3, 3, 3], along(7)]
    rows[0]["position_ids"] = space
    tail = along(9, 1, 4, 4)
    in_space = [[own + tail] for own in space]
    assert found(in_space, rows).passed
    assert found([[along(7) + tail], *in_space], rows).passed
    wrong = found([[along(7) + tail], in_space[2], in_space[1], in_space[2]], rows)
    assert "1 of 4 samples: sample 0 has [0, 1, 2, 3]" in wrong.detail
    assert "alone it has [0, 0, 0, 1]" in wrong.detail
    assert "[4, B, T]" in wrong.way_out
    assert found([along(7) + tail], rows).failed


@pytest.mark.parametrize("start", [0, 2])
def test_positions_that_run_on_are_named(start):
    """Whether the collator says so or the model numbers the row; the first sample is right in any case."""
    model = NeverRun(model_type="roberta", pad_token_id=start - 1) if start else None
    finding = found([along(25, start=start)], model=model)
    assert finding.cause == "positions not reset: they run on through the whole row"
    assert finding.detail.startswith(f"3 of {len(IDS)} samples: sample 1 has [{7 + start}, ")
    assert found(None, model=model).cause.startswith("no position_ids")
    assert found(None, samples([5, 6, 7]), model).passed
    once = found([along(7, start=start) + along(18, start=7 + start)], model=model)
    assert once.cause.startswith("positions not reset")
    assert found([along(7, 9, start=start) + along(9, start=9 + start)], model=model).cause.startswith(
        "positions begin"
    )


@pytest.mark.parametrize(
    ("delay", "words"), [(-2, "2: positions start again 2 tokens early"), (-1, "one: positions start again 1 token early"),
                         (1, "one: positions start again 1 token late"), (2, "2: positions start again 2 tokens late")],
)  # fmt: skip
def test_positions_that_start_again_too_early_or_too_late(delay, words):
    """The distance tells which length was counted."""
    finding = found([along(6 + delay, 6, 6, 4 - delay)], ROWS)
    assert finding.cause.startswith(f"boundaries off by {words}")
    uneven = found([along(6 + delay, 6 - delay, 10)], ROWS)
    assert not uneven.cause.startswith("boundaries")


def test_positions_of_another_sample_are_named_as_such():
    assert found([along(6, start=1) + along(6, 6, 4)], ROWS).cause == (
        "positions begin elsewhere than at 0, or belong to another sample"
    )
    reset = found([along(6, 6, 3, 3, 4)], ROWS)
    assert (reset.detail[:26], reset.failed) == ("1 of 3 samples: sample 2 h", True)


def test_mrope_over_the_whole_row_is_one_number_more_in_each_sample():
    """Pictures take fewer positions than tokens, so it is not the column."""
    rows = [dict(row, position_ids=[along(6)] * 3) for row in ROWS]
    space = along(6) + along(6, start=4) + along(6, start=8) + along(4)
    finding = found([[along(6, 6, 6, 4)], *[[space]] * 3], rows)
    assert finding.cause == "mRoPE over the whole row: all 4 rows of position_ids run on through the samples"
    assert found([[space]] * 3, rows).cause.startswith("mRoPE over the whole row: all 3 rows")
    only_height = found([[along(6, 6, 6, 4)], [along(6, 6, 6, 4)], [space], [along(6, 6, 6, 4)]], rows)
    assert not only_height.cause.startswith("mRoPE")
    less = [place - 1 for place in along(6, 6, 6)] + along(4)
    assert not found([[along(6, 6, 6, 4)], *[[less]] * 3], rows).cause.startswith("mRoPE")
    assert not found([[space]] * 2, ROWS).cause.startswith("mRoPE")


@pytest.mark.parametrize(
    ("branch", "cause"),
    [
        ([7, 8], "positions run on along the row"),
        ([0, 1], "positions begin again at 0 in every branch"),
        ([4, 5], "positions are not the depths of tokens"),
    ],
)
def test_a_position_in_a_tree_is_a_depth(branch, cause):
    """The place where a branch goes wrong is told, since its trunk may be right."""

    def change(batch, packs):
        batch["position_ids"][0, 7:9] = torch.tensor(branch)
        return batch

    packs = [toy_tree([[5, 6, 7, 8, 9, 10, 11], [5, 6, 7, 8, 9, 12, 13]])]
    finding = arrays(tree_faults.Trees(change, "index"), packs)["positions"]
    assert finding.cause.startswith(cause)
    assert finding.detail == f"1 of 2 samples: sample 1 has {branch}… at token 5, alone it has [5, 6]…"
    right = arrays(tree_faults.Trees(branch="index"), packs)["positions"]
    assert right.detail == "from 0 in every sample, along its path"
