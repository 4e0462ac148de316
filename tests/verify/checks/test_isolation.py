"""Isolation: who moved whom, by how much, and when a movement is rounding; on a model of milliseconds."""

from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from brimful.errors import CollateError  # noqa: E402
from brimful.verify import Status  # noqa: E402
from brimful.verify.checks.isolation import (  # noqa: E402
    check_isolation,
    check_padding_moves_nothing,
    measure_movement,
    other_tokens,
)
from brimful.verify.drawn_samples import random_trees  # noqa: E402
from tests.verify import faults, tree_faults  # noqa: E402
from tests.verify.toys import NeverRun, Toy, samples, setup_of  # noqa: E402

FLOAT, HALF = torch.float32, torch.bfloat16


def movement(sizes, in_rows=(0.0,), dtype=FLOAT, tolerance=None):
    """The movement that these sizes make, one for each precision; None is a refusal."""
    model = torch.nn.Linear(2, 2).to(dtype)
    limit = {FLOAT: 1e-5, HALF: 6e-2}[dtype] if tolerance is None else tolerance
    setup: Any = SimpleNamespace(
        model=model, dtype=dtype, tolerance=tolerance, parity_limit=limit, dtype_name=str(dtype)
    )

    def by_precision(values):
        value = values[-1] if model.weight.dtype is FLOAT else values[0]
        if value is None:
            raise RuntimeError("refused")
        return value

    return measure_movement(setup, lambda: by_precision(sizes), lambda: by_precision(in_rows))


@pytest.mark.parametrize(
    ("arguments", "passes", "limit"),
    [
        (([1e-5],), True, 1e-5),
        (([2e-5],), False, 1e-5),
        (([2e-5], [1e-6]), False, 1e-5),
        (([2e-5], [1e-5]), True, 8e-5),
        (([8e-3], [1e-3]), True, 8e-3),
        (([1e-2], [2e-3]), False, 1e-5),
        (([9e-3], [None]), False, 1e-5),
        (([0.2], [1.0], FLOAT, 0.3), True, 0.3),
        (([0.4], [1.0], FLOAT, 0.3), False, 0.3),
        (([0.0], [1.0], HALF), True, 0.0),
        (([1e-3], [0.0], HALF), False, 0.0),
        (([1e-3, 1e-6], [1e-3, 1e-7], HALF), True, 1e-5),
        (([1e-3, 1e-4], [1e-3, 1e-7], HALF), False, 1e-5),
        (([1e-3, 1e-4], [1e-3, 2e-5], HALF), True, 1.6e-4),
        (([1e-3, None], [1e-3], HALF), True, 8e-3),
        (([1e-2, None], [1e-3], HALF), False, 8e-3),
        (([0.2], [1.0], HALF, 0.3), True, 0.3),
    ],
)
def test_a_movement_is_rounding_up_to_eight_times_the_one_in_rows(arguments, passes, limit):
    """In low precision nothing is allowed unless rows move too; then float32 decides, if it can run."""
    found = movement(*arguments)
    assert (found.passed, pytest.approx(limit)) == (passes, found.limit), found


def test_what_decided_about_a_movement_is_told():
    """A reader of a PASS in low precision has to know what was looked at."""
    in_float32 = movement([1e-3, 1e-6], [2e-3, 1e-7], HALF)
    assert (in_float32.precise, in_float32.size, in_float32.noise) == (True, 1e-6, 1e-7)
    assert in_float32.remark.startswith("told in float32; rounding in")
    assert "moves 1.0e-03, and 2.0e-03 with" in in_float32.remark
    assert movement([1e-3, None], [1e-3], HALF).remark.startswith("float32 cannot run here; rounding")
    assert not movement([1e-3, None], [1e-3], HALF).precise
    assert "refused" in movement([1.0], [None]).remark
    plain = movement([2e-5], [1e-5])
    assert (plain.precise, plain.noise, plain.remark) == (False, 1e-5, "")

    def fail():
        raise CollateError("the collator")

    setup: Any = SimpleNamespace(dtype=FLOAT, tolerance=None, parity_limit=1e-5)
    with pytest.raises(CollateError):
        measure_movement(setup, lambda: 1.0, fail)


class SeesTheNext(faults.Around):
    """Each token sees the one after it."""

    def change(self, logits, batch):
        return logits + 0.1 * torch.nn.functional.pad(logits[:, 1:], (0, 0, 0, 1))


def test_a_leak_tells_who_moves_whom():
    """Its size, the tokens that moved, and how many samples leak, lead to the boundary that is missing."""
    finding, leak = check_isolation(setup_of(faults.mask_present))
    assert finding.status is Status.FAIL
    assert leak is not None
    segment = setup_of().samples.segments[leak.moved]
    assert finding.measured == leak.size > leak.own / 100
    assert (
        f"in sample {leak.change.part} move {leak.tokens} of {len(segment.ids)} tokens of {segment.name}"
        in finding.detail
    )
    assert "which sees the earlier sample; 3 of 4 samples leak" in finding.detail
    assert leak.limit == finding.limit == 1e-5
    later, leak = check_isolation(setup_of(model=SeesTheNext(Toy())))
    assert "which sees the later sample; 3 of 4 samples leak" in later.detail
    assert leak is not None
    assert (leak.tokens, leak.change.part - leak.moved) == (1, 1)


@pytest.mark.parametrize(("count", "changed"), [(2, 2), (8, 8), (9, 5), (16, 8), (17, 6)])
def test_at_most_eight_samples_are_changed(count, changed):
    """Spread over the batch, with one forward for each."""
    rows = samples(*[[5 + number, 6, 7] for number in range(count)])
    finding, leak = check_isolation(setup_of(rows=rows))
    assert finding.detail == f"{changed} samples changed, one at a time"
    assert leak is not None
    assert leak.own > 1e-3


def test_what_cannot_be_shown_does_not_pass():
    """One sample alone, tokens without another, and a model that does not look at its input."""
    assert check_isolation(setup_of(rows=samples([5, 6, 7])))[0].status is Status.NOT_SUPPORTED
    assert check_isolation(setup_of(rows=samples([5, 5], [5, 5, 5])))[0].status is Status.NOT_SUPPORTED
    blind = faults.Around(Toy())
    blind.change = lambda logits, batch: torch.zeros_like(logits)  # type: ignore[method-assign]
    finding, leak = check_isolation(setup_of(model=blind))
    assert (finding.status, leak) == (Status.NOT_SUPPORTED, None)
    assert "do not even move its own logits" in finding.detail


def test_samples_that_move_each_other_in_rows_too_are_not_laid_to_the_packing():
    """Then no batch can help, and the report says so; also that rounding is not a fault."""
    finding, leak = check_isolation(setup_of(model=faults.StatisticsOverTheBatch(Toy())))
    assert (finding.status, leak) == (Status.FAIL, None)
    assert finding.cause.startswith("not the packing")

    class Rounding(faults.Around):
        def change(self, logits, batch):
            return logits * (1 + 3e-5 * (batch["input_ids"].sum() % 7))

    finding, _ = check_isolation(setup_of(model=Rounding(Toy())))
    assert finding.status is Status.PASS
    assert finding.limit > finding.measured > 1e-5


def test_other_tokens_occur_in_the_samples_and_stand_for_no_medium():
    """A special token that comes in would change more than the content."""
    rows = samples([5, 6, 7, 9], [9, 9, 6])
    setup = setup_of(rows=rows, model=NeverRun(image_token_id=9))
    assert other_tokens(setup, 0).tolist() == [6, 7, 5, 9]
    assert other_tokens(setup, 0, 2).tolist() == [7, 5, 6, 9]
    assert other_tokens(setup, 0, 3) is None
    assert other_tokens(setup, 1).tolist() == [9, 9, 7]
    assert other_tokens(setup_of(rows=samples([9, 9], [5, 9]), model=NeverRun(image_token_id=9)), 0) is None


def test_a_branch_does_not_become_its_sibling():
    """A collator that compares tokens would join the two."""
    rows = samples([5, 6, 10], [5, 7, 11], [5, 8, 12])
    setup = setup_of_trees(rows)
    changed = [other_tokens(setup, part) for part in range(4)]
    assert [ids.tolist() for ids in changed if ids is not None] == [[6], [10, 11], [10, 12], [10, 5]]


def setup_of_trees(rows):
    from brimful.verify.reference_samples import ReferenceSamples
    from brimful.verify.setup import PackingSetup

    return PackingSetup(NeverRun(), faults.right, ReferenceSamples(rows, trees=True))


class Remembers(faults.Around):
    """A model that keeps the tokens that it was given."""

    def __init__(self, inner, leak=0.0):
        super().__init__(inner)
        self.given, self.leak = [], leak

    def change(self, logits, batch):
        self.given.append(batch["input_ids"].clone())
        return logits + self.leak * batch["input_ids"][:, -1:, None]


def test_padding_gets_a_token_of_its_own_at_every_place():
    """Equal ones could move nothing by symmetry; each is one that the model has, and none stands for a medium."""
    model = Remembers(Toy(image_token_id=3))
    finding = check_padding_moves_nothing(setup_of(model=model))
    assert finding is not None
    assert finding.passed
    own, other = (ids[0] for ids in model.given)
    assert torch.equal(own[:21], other[:21])
    assert other[21:].tolist() == [1, 2, 1, 4]
    assert own[21:].tolist() == [0] * 4
    last = Remembers(Toy())
    check_padding_moves_nothing(setup_of(lambda rows: padded_with(rows, 63), last))
    assert last.given[1][0, -4:].tolist() == [0, 1, 2, 3]
    assert (
        check_padding_moves_nothing(
            setup_of(lambda rows: faults.without(faults.right(rows[:1]), "cu", "seq"), rows=samples([5]))
        )
        is not None
    )


def padded_with(rows, token):
    batch = faults.right(rows)
    batch["input_ids"][0, -4:] = token
    return batch


def test_padding_that_moves_samples_is_found():
    finding = check_padding_moves_nothing(setup_of(model=Remembers(Toy(), 0.1)))
    assert finding is not None
    assert finding.failed
    assert "put padding at the end" in finding.way_out
    assert check_padding_moves_nothing(setup_of(lambda rows: without_padding(faults.right(rows)))) is None


def without_padding(batch):
    return {name: value[:, :-4] if name in ("input_ids", "labels", "position_ids") else value
            for name, value in faults.without(batch, "cu_seq", "max", "seq_idx").items()}  # fmt: skip


# Trees


def trees(fault=tree_faults.no_window, model=None):
    return setup_of(tree_faults.Trees(fault), model, random_trees(64))


def test_a_right_tree_passes_segment_by_segment():
    finding, leak = check_isolation(trees())
    assert finding.passed, finding
    assert finding.detail == "14 segments changed, one at a time"
    assert leak is not None
    assert leak.follows > 1e-3


@pytest.mark.parametrize(
    ("fault", "words"),
    [
        (tree_faults.siblings_visible, "which sees a sibling; "),
        (tree_faults.mask_by_causality_alone, "which sees "),
        (tree_faults.trunks_invisible, "which continues it"),
    ],
)
def test_what_a_token_of_a_tree_sees_is_named(fault, words):
    """A sibling, another tree, or not its trunk: each is another line of the mask."""
    finding, leak = check_isolation(trees(fault))
    assert finding.failed
    assert words in finding.detail
    assert leak is not None
    if fault is tree_faults.trunks_invisible:
        assert leak.is_cut
        assert "do not move sample" in finding.detail
    else:
        assert "segments leak" in finding.detail
        assert leak.size > leak.limit


def test_another_tree_and_later_tokens_are_named():
    """Two trees of a row, and a mask without causality."""

    def whole(batch, packs):
        return tree_faults.with_mask(batch, torch.ones(tree_faults.SIZE, tree_faults.SIZE, dtype=torch.bool))

    def others(batch, packs):
        roots = (batch["position_ids"][0] == 0).long().cumsum(0)
        ahead = torch.ones(tree_faults.SIZE, tree_faults.SIZE, dtype=torch.bool).tril()
        return tree_faults.with_mask(batch, tree_faults.pairs(batch) | ahead & (roots[:, None] != roots))

    def later(batch, packs):
        pairs = tree_faults.pairs(batch)
        return tree_faults.with_mask(batch, pairs | pairs.T & (torch.arange(tree_faults.SIZE) < 14))

    assert "which sees another tree" in check_isolation(trees(others))[0].detail
    assert "which sees a later token of its own path" in check_isolation(trees(later))[0].detail
    assert check_isolation(trees(whole))[0].failed


def test_a_model_that_sees_the_last_tokens_of_a_path_alone_passes():
    """What is farther than the windows of all layers need not move; what comes next must."""

    class Window(faults.Around):
        def forward(self, **batch):
            places = batch["position_ids"][0]
            near = (places[:, None] - places).abs() < 3
            return self.inner(**{**batch, "attention_mask": batch["attention_mask"] & near})

    finding, _ = check_isolation(trees(model=Window(Toy())))
    assert finding.passed, finding
