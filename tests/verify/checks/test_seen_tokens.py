"""What tokens of a tree see: each wrong line of a mask has its own name and its number of pairs, without a run of the model."""

import re

import pytest

torch = pytest.importorskip("torch")

from brimful.verify.drawn_samples import random_trees  # noqa: E402
from tests.verify import tree_faults as faults  # noqa: E402
from tests.verify.toys import NeverRun, arrays  # noqa: E402

SIZE = faults.SIZE
PLACES = torch.arange(SIZE)


def found(change, model=None):
    """The finding of boundaries, with a mask that is the right one changed, ``bool[query, key]``."""

    def fault(batch, packs):
        mask = faults.with_mask(batch, faults.pairs(batch))
        visible = mask["attention_mask"][0, 0]
        change(visible, batch)
        return mask

    return arrays(faults.Trees(fault, "index"), random_trees(64), model)["boundaries"]


def pairs(finding):
    """The pairs that are too many, and the ones too few."""
    return [int(number) for number in re.findall(r"(\d+) (?:pairs too many|too few)", finding.detail)]


def test_each_form_of_a_right_row_passes():
    """Ranges, runs and masks, and a window of the model that a mask has."""
    rows = random_trees(64)
    assert arrays(faults.Trees(), rows)["boundaries"].detail == "tree_in, tree_out, tree_kv_index"
    assert arrays(faults.Trees(dialect="dense_mask"), rows)["boundaries"].detail == "tree_in, tree_out, attention_mask"
    assert found(lambda visible, batch: None).detail == "attention_mask"
    silent = faults.Trees(lambda batch, packs: faults.without(batch, "tree", "parents"))
    assert arrays(silent, rows)["boundaries"].detail.startswith("the batch has none")


def roots(batch):
    return (batch["position_ids"][0] == 0).long().cumsum(0)


def siblings(visible, batch):
    visible |= (roots(batch)[:, None] == roots(batch)) & (PLACES[:, None] >= PLACES)


def other_trees(visible, batch):
    own, real = roots(batch), faults.segments_of(batch)[-1][0] > PLACES
    visible |= (own[:, None] != own) & (PLACES[:, None] > PLACES) & real[:, None] & real


def later(visible, batch):
    visible[3, 5] = True


def everything_before(visible, batch):
    visible |= PLACES[:, None] >= PLACES


def later_in_another_tree(visible, batch):
    visible[0, faults.segments_of(batch)[-1][0] - 1] = True


def trunks(visible, batch):
    for begin, end in faults.segments_of(batch):
        visible[begin:end, :begin] = False


def trunk_of_the_trunk(visible, batch):
    segments = faults.segments_of(batch)
    for begin, end in segments:
        path = [own for own in segments if own[0] < begin and bool(visible[begin, own[0]])]
        for first, last in path[:-1]:
            visible[begin:end, first:last] = False


def before_in_its_segment(visible, batch):
    visible[5, 3] = False


def one_of_a_trunk(visible, batch):
    begin = faults.segments_of(batch)[1][0]
    visible[begin + 1, 0] = False


def padding_seen(visible, batch):
    visible[SIZE - 1, :] = True


@pytest.mark.parametrize(
    ("change", "cause"),
    [
        (siblings, "siblings are visible"),
        (other_trees, "trees of a row see each other"),
        (later, "tokens see later tokens of the row"),
        (later_in_another_tree, "tokens see later tokens of the row"),
        (everything_before, "a mask by causality alone"),
        (trunks, "branches do not see their trunk"),
        (trunk_of_the_trunk, "a branch sees its own trunk, and not the trunk of that trunk"),
        (before_in_its_segment, "tokens do not see the tokens before them in their own segment"),
        (one_of_a_trunk, "branches do not see their trunk"),
        (padding_seen, ""),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_wrong_line_of_a_mask_is_named_with_its_pairs(change, cause):
    """The cause is the line of the mask to change; what padding sees is of no interest."""
    finding = found(change)
    assert finding.failed == bool(cause), finding
    assert finding.cause.startswith(cause)
    if not cause:
        return
    surplus, deficit = expected_pairs(change)
    assert pairs(finding) == [surplus, deficit]
    assert (" sees " in finding.detail) == (surplus > 0)
    assert " of sample " in finding.detail


def expected_pairs(change):
    batch = faults.Trees(branch="index")(random_trees(64))
    right = faults.with_mask(batch, faults.pairs(batch))["attention_mask"][0, 0]
    wrong = right.clone()
    change(wrong, batch)
    real = faults.segments_of(batch)[-1][0]
    return int((wrong & ~right)[:real].sum()), int((right & ~wrong)[:real].sum())


class Windows(NeverRun):
    """A model of Transformers whose layers have windows."""

    def __init__(self, **config):
        super().__init__(**config)
        self.config.get_text_config = lambda: self.config

    def set_attn_implementation(self, name):
        raise AssertionError(name)


def test_windows_count_along_the_path():
    """A window that is left out, or that siblings take a place in, is told with its tokens."""
    mistral = Windows(sliding_window=8)

    def right(visible, batch):
        depth = batch["position_ids"][0]
        visible &= depth[:, None] - depth < 8

    def along_the_row(visible, batch):
        visible &= PLACES[:, None] - PLACES < 8

    def too_wide(visible, batch):
        depth = batch["position_ids"][0]
        visible &= depth[:, None] - depth < 9

    assert found(right, mistral).passed
    assert found(right, Windows(sliding_window=None)).failed
    assert found(right, Windows(sliding_window=8, layer_types=["full_attention"])).failed
    assert found(right, Windows(sliding_window=8, layer_types=["sliding_attention"])).passed
    assert found(lambda visible, batch: None, mistral).cause.startswith("a mask without the window of 8 tokens")
    assert found(too_wide, mistral).cause.startswith("a mask without the window of 8 tokens")
    assert found(along_the_row, mistral).cause.startswith("the window of 8 tokens is measured along the row")
    assert found(siblings, mistral).cause.startswith("siblings are visible")
    assert found(trunks, Windows(sliding_window=64)).cause.startswith("branches do not see their trunk")


def test_a_mask_of_one_kind_of_layers_is_compared_with_that_kind():
    """Gemma's layers have windows and others none; each has its mask."""
    gemma = Windows(sliding_window=8, layer_types=["full_attention", "sliding_attention"])

    def masks(batch, packs, swapped=False):
        full = faults.with_mask(batch, faults.pairs(batch))
        depth = batch["position_ids"][0]
        near = full["attention_mask"] & (depth[:, None] - depth < 8)
        pair = [full["attention_mask"], near]
        return {
            **full,
            "attention_mask": dict(
                zip(("full_attention", "sliding_attention"), pair[:: -1 if swapped else 1], strict=True)
            ),
        }

    right = arrays(faults.Trees(masks), random_trees(64), gemma)["boundaries"]
    assert right.detail == "attention_mask of full_attention, attention_mask of sliding_attention"
    assert arrays(faults.Trees(lambda *both: masks(*both, swapped=True)), random_trees(64), gemma)["boundaries"].failed


@pytest.mark.parametrize(
    ("fault", "cause"),
    [
        (faults.padding_inside_a_path, "padding lies inside a path"),
        (faults.insertion_order, "segments are not in depth-first order"),
    ],
)
def test_a_row_that_is_laid_out_wrongly_is_named(fault, cause):
    assert arrays(faults.Trees(fault), random_trees(64))["boundaries"].cause.startswith(cause)


def test_ranges_that_end_too_late_or_too_early_are_named_by_their_first_pair():
    """One token more in tree_out lets the next branch see the end of the one before."""

    def late(batch, packs):
        return {
            **faults.without(batch, "tree_kv", "tree_cu", "tree_max"),
            "tree_out": batch["tree_out"] + (PLACES == 13).int(),
        }

    finding = arrays(faults.Trees(late), random_trees(64))["boundaries"]
    assert finding.detail.startswith("tree_in, tree_out: token ")
    assert pairs(finding) == [1, 0]
