"""Targets of trees: missing, foreign and wrongly weighed ones are counted and named, without a run of the model."""

import re

import pytest

torch = pytest.importorskip("torch")

from brimful.testing.toys import toy_tree  # noqa: E402
from brimful.verify.drawn_samples import random_trees  # noqa: E402
from tests.verify import tree_faults as faults  # noqa: E402
from tests.verify.toys import arrays  # noqa: E402

ROWS = [[5, 6, 7, 8], [5, 6, 9, 3], [5, 6], [4, 2]]
"""A trunk of two tokens that is a sample itself, two branches, and a tree of its own."""


def found(fault=lambda batch, packs: batch, rows=None, branch="fork", masks=None):
    packs = [toy_tree(ROWS, masks)] if rows is None else rows
    return arrays(faults.Trees(fault, branch), packs)["labels"]


@pytest.mark.parametrize("branch", ["fork", "index"])
def test_right_targets_are_counted_once_for_each_sample(branch):
    """Three samples train token 6; a branch's first token is predicted by its trunk."""
    assert found(branch=branch).detail == "8 targets of 4 samples in 6 terms, 2 of them first of a branch"
    masks = [[False, True, True, True], [False, False, True, True], [False, False], [False, True]]
    assert found(branch=branch, masks=masks).detail == "6 targets of 4 samples in 6 terms, 2 of them first of a branch"


def counts(finding):
    return [
        int(number) for number in re.findall(r"(\d+) (?:targets missing|foreign|with another weight)", finding.detail)
    ]


def terms(change):
    """A change of the terms of a row that names its places: place, target and weight of each."""

    def fault(batch, packs):
        index, targets, weights = (batch[f"loss_{name}"].tolist() for name in ("index", "targets", "weights"))
        changed = [change(*term) for term in zip(index, targets, weights, strict=True)]
        kept = [term for term in changed if term is not None]
        return {**batch, **{
            f"loss_{name}": torch.tensor([term[number] for term in kept], dtype=batch[f"loss_{name}"].dtype)
            for number, name in enumerate(("index", "targets", "weights"))
        }}  # fmt: skip

    return fault


@pytest.mark.parametrize(
    ("change", "numbers", "cause"),
    [
        (lambda at, token, weight: None if token in (7, 9) else (at, token, weight), [2, 0, 0], "first tokens of branches (2) are not trained"),
        (lambda at, token, weight: None if token in (7, 3) else (at, token, weight), [2, 0, 0], "targets of the samples (2) have no place"),
        (lambda at, token, weight: None if token == 2 else (at, token, weight), [1, 0, 0], "sample 3 is not trained"),
        (lambda at, token, weight: (at, token, weight - (token == 6)), [0, 0, 1], "sample 2 is not trained"),
        (lambda at, token, weight: (at, token, weight and 1.0), [0, 0, 1], "a target that several samples share counts once"),
        (lambda at, token, weight: (at, token, weight * (2 if token == 8 else 1)), [0, 0, 1], "weights of shared targets are not the number"),
        (lambda at, token, weight: (at, token, weight + 1e-5), [0, 0, 0], ""),
        (lambda at, token, weight: (at, 50 if token == 8 else token, weight), [1, 1, 0], "targets of the samples (1) have no place"),
    ],
)  # fmt: skip
def test_wrong_targets_are_counted_and_named(change, numbers, cause):
    """The pattern tells the mistake."""
    finding = found(terms(change), branch="index")
    assert finding.cause.startswith(cause)
    assert finding.failed == bool(cause)
    if cause:
        assert counts(finding) == numbers


def test_foreign_targets_alone_are_named():
    """Padding that predicts is told by another check."""

    def more(batch, packs, place):
        extra = {"loss_index": place, "loss_targets": 50, "loss_weights": 1}
        return {
            **batch,
            **{key: torch.cat([batch[key], torch.tensor([value]).to(batch[key])]) for key, value in extra.items()},
        }

    finding = found(lambda batch, packs: more(batch, packs, 2), branch="index")
    assert counts(finding) == [0, 1, 0]
    assert finding.cause.startswith("targets of the batch (1) belong to no sample")
    assert found(lambda batch, packs: more(batch, packs, faults.SIZE - 1), branch="index").passed


@pytest.mark.parametrize(
    ("fault", "cause", "branch"),
    [
        (faults.first_token_of_branches_untrained, "first tokens of branches (", "index"),
        (faults.branches_predicted_by_siblings, "first tokens of branches (", "index"),
        (faults.shared_target_counts_once, "a target that several samples share counts once", "fork"),
        (faults.fork_without_its_weight, "the last token of a trunk, which each branch repeats,", "fork"),
        (faults.copies_keep_their_labels, "targets of the batch (", "fork"),
    ],
)
def test_faults_of_tries_are_named(fault, cause, branch):
    finding = found(fault, random_trees(64), branch)
    assert finding.cause.startswith(cause)
    if fault is faults.branches_predicted_by_siblings:
        assert "are predicted by the last token of the branch before" in finding.cause
