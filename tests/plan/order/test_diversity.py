"""Figures of variety, held against sums on paper and against slow loops."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import InvalidLengthsError, PlanMismatchError
from brimful.plan.order import diversity as diversity_module
from brimful.plan.order.diversity import measure_variety
from brimful.plan.packing import Packing
from brimful.plan.schedule import Tail, schedule_packs
from tests.plan.reference import co_packing_overlap

OFFSETS = np.array([0, 1, 3, 7])
LENGTHS = np.array([8, 4, 4, 2, 2, 2, 2], dtype=np.int32)


def measure(offsets=OFFSETS, lengths=LENGTHS, *, sources=None, loss_tokens=None, steps=None):
    columns = {
        name: None if column is None else np.array(column)
        for name, column in (("sources", sources), ("loss_tokens", loss_tokens), ("steps", steps))
    }
    return measure_variety(np.array(offsets), np.array(lengths, dtype=np.int32), **columns)


def test_figures_of_seven_segments():
    """8, 4 4 and 2 2 2 2: mean 24/7, variance 26.857 ÷ 6... every figure by hand."""
    found = measure(sources=[0, 0, 1, 1, 1, 1, 1], loss_tokens=[8, 2, 2, 0, 0, 0, 0]).packs
    mean = 24 / 7
    squares = 8**2 + 2 * 4**2 + 4 * 2**2 - 7 * mean**2
    assert found.groups == 3
    assert found.segments == pytest.approx(7 / 3)
    assert found.segments_cv == pytest.approx(np.std([1, 2, 4]) / (7 / 3))
    assert found.segments_cv_by_chance == pytest.approx(np.sqrt(squares / 6) / mean / np.sqrt(7 / 3))
    assert found.mean_length_sd == pytest.approx(np.sqrt(squares / 7)), "all that lengths differ by is between packs"
    assert found.mean_length_sd_by_chance == pytest.approx(np.sqrt(squares / 6 * 2 / 7))
    assert found.alikeness == pytest.approx(3)
    assert found.order_correlation == pytest.approx(-1)
    assert found.loss_share == pytest.approx(0.5)
    assert found.loss_share_sd == pytest.approx(np.sqrt((0.5**2 + 0 + 0.5**2) / 3))
    assert found.source_distance == pytest.approx((0.5 + 0 + 0.5) / 3), "half of all tokens are of each source"
    assert found.source_distance_max == pytest.approx(0.5)
    assert found.sources == pytest.approx((1 + 2 + 1) / 3)


def test_what_was_not_given_is_not_measured():
    """None, and not a zero that reads like a perfect figure."""
    found = measure()
    assert found.steps is None
    assert (found.packs.loss_share, found.packs.source_distance, found.packs.sources) == (None, None, None)


def test_steps_are_the_segments_of_all_their_ranks():
    """Packs 0 and 2 together, then 1 and an empty place; a pack that is repeated counts twice."""
    found = measure(steps=[[[[0]], [[2]]], [[[1]], [[-1]]]], sources=[0, 0, 1, 1, 1, 1, 1]).steps
    assert found.groups == 2
    assert found.segments == pytest.approx(7 / 2)
    assert found.mean_length_sd == pytest.approx(np.sqrt((5 * (16 / 5 - 24 / 7) ** 2 + 2 * (4 - 24 / 7) ** 2) / 7))
    assert found.source_distance_max == pytest.approx(0), "half of each source in both"
    assert found.order_correlation == pytest.approx(1)
    twice = measure(steps=[[[[0, 0]]], [[[1, 2]]]]).steps
    assert twice.segments == pytest.approx(8 / 2)
    assert twice.mean_length_sd > 2


def test_a_schedule_without_steps_has_no_figures():
    """Fewer packs than a step takes, under ``drop``; or steps of empty places only."""
    assert measure(steps=np.empty((0, 8, 1, 1), dtype=np.int64)).steps is None
    assert measure(steps=[[[[-1]]]]).steps is None


def test_equal_lengths_and_single_packs_have_nothing_to_differ_by():
    """No division by zero: everything is as by chance."""
    assert measure([0, 1, 2], [5, 5]).packs.alikeness == 1
    assert measure([0, 2], [5, 3]).packs.alikeness == 1
    assert measure([0, 1, 2], [5, 5]).packs.order_correlation == 0
    assert measure([0, 1], [5], sources=[0]).packs.sources == 1


def test_groups_dealt_at_random_have_an_alikeness_of_one():
    """What 1 means, and that nothing else of the plan has a part in it."""
    draw = np.random.default_rng(0)
    lengths = np.rint(draw.lognormal(6, 1, 30_000)).astype(np.int32) + 1
    sources = draw.integers(0, 4, 30_000)
    offsets = np.concatenate([[0], np.sort(draw.choice(np.arange(1, 30_000), 5_000, replace=False)), [30_000]])
    found = measure(offsets, lengths, sources=sources, loss_tokens=lengths // 3).packs
    assert found.alikeness == pytest.approx(1, abs=0.05)
    assert found.mean_length_sd == pytest.approx(found.mean_length_sd_by_chance, rel=0.05)
    assert found.source_distance == pytest.approx(found.source_distance_by_chance, rel=0.02)
    assert found.sources == pytest.approx(found.sources_by_chance, rel=0.02)
    assert found.loss_share_sd == pytest.approx(found.loss_share_sd_by_chance, rel=0.1)
    assert abs(found.order_correlation) < 0.05
    in_order = np.sort(lengths)
    assert measure(offsets, in_order).packs.order_correlation > 0.99


def slowly(packs, lengths, sources, loss):
    """The formulas of the docstring, one group at a time."""
    flat = [segment for pack in packs for segment in pack]
    total = sum(lengths[i] for i in flat)
    mean = total / len(flat)
    variance = sum((lengths[i] - mean) ** 2 for i in flat) / max(1, len(flat) - 1)
    between = sum(len(p) * (sum(lengths[i] for i in p) / len(p) - mean) ** 2 for p in packs)
    kinds = set(sources)
    whole = {k: sum(lengths[i] for i in flat if sources[i] == k) / total for k in kinds}
    distances, numbers, off = [], [], 0.0
    share = sum(loss[i] for i in flat) / total
    for pack in packs:
        tokens = sum(lengths[i] for i in pack)
        shares = {k: sum(lengths[i] for i in pack if sources[i] == k) / tokens for k in kinds}
        distances.append(sum(abs(shares[k] - whole[k]) for k in kinds) / 2)
        numbers.append(1 / sum(s * s for s in shares.values()))
        off += tokens * (sum(loss[i] for i in pack) / tokens - share) ** 2
    return {
        "mean_length_sd": (between / len(flat)) ** 0.5,
        "mean_length_sd_by_chance": (variance * (len(packs) - 1) / len(flat)) ** 0.5,
        "loss_share_sd": (off / total) ** 0.5,
        "source_distance": sum(distances) / len(packs),
        "source_distance_max": max(distances),
        "sources": sum(numbers) / len(packs),
    }


@given(
    packs=st.lists(
        st.lists(st.tuples(st.integers(1, 50), st.integers(0, 3), st.floats(0, 1)), min_size=1, max_size=6),
        min_size=1,
        max_size=12,
    ),
    world=st.integers(1, 3),
    tail=st.sampled_from(list(Tail)),
    chunk=st.sampled_from([1, 7, 1 << 22]),
)
def test_same_figures_as_slow_loops(packs, world, tail, chunk):
    """Whatever the pieces that large tables are cut into, for packs and for steps with repeats and empty places."""
    lengths = [length for pack in packs for length, _, _ in pack]
    sources = [source for pack in packs for _, source, _ in pack]
    loss = [int(length * share) for pack in packs for length, _, share in pack]
    offsets = np.cumsum([0] + [len(pack) for pack in packs])
    numbers = [list(range(a, b)) for a, b in pairwise(offsets)]
    steps = schedule_packs(
        len(packs), dp_world_size=world, micro_batches=1, packs_per_micro_batch=1, epoch=0, seed=0, tail=tail
    )
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(diversity_module, "_CHUNK", chunk)
        found = measure(offsets, lengths, sources=sources, loss_tokens=loss, steps=steps)
    groups = [[i for pack in step.ravel() if pack >= 0 for i in numbers[pack]] for step in steps]
    for spread, expected in ((found.packs, numbers), (found.steps, groups)):
        if spread is None:
            assert not groups
            continue
        for name, value in slowly(expected, lengths, sources, loss).items():
            assert getattr(spread, name) == pytest.approx(value, abs=1e-5), name


def test_companions_that_meet_again():
    """Of 0-1, 0-2, 1-2 and 3-4, the pairs 0-1 and 3-4 meet again."""
    one = Packing(np.array([0, 3, 5]), np.array([0, 1, 2, 3, 4]))
    other = Packing(np.array([0, 2, 5]), np.array([1, 0, 4, 2, 3]))
    assert co_packing_overlap(one, other) == 0.5
    assert co_packing_overlap(one, one) == 1
    alone = Packing(np.arange(6), np.arange(5))
    assert co_packing_overlap(alone, one) == 0


def test_in_words():
    """A line for each figure, with what chance would give."""
    lines = measure(
        sources=[0, 0, 1, 1, 1, 1, 1], loss_tokens=[8, 2, 2, 0, 0, 0, 0], steps=[[[[0]]], [[[1]]]]
    ).describe()
    assert len(lines) == 10
    assert lines[1] == "mean length of a pack is off by 2 tokens (1 by chance); alikeness 3.00 (1 by chance)"
    assert lines[2].startswith("loss tokens in a pack: 50.0 %, give or take 40.8 (")
    assert lines[3].startswith("sources of a pack are 33.3 % off the data's, at most 50.0 % (")
    assert lines[-1] == "correlation of the order of steps with length: -1.000 (0 by chance)"


@pytest.mark.parametrize(
    ("columns", "error", "message"),
    [
        ({"sources": [0, 1]}, InvalidLengthsError, "sources has 2 entries for 7 segments"),
        ({"loss_tokens": [0] * 6 + [-1]}, InvalidLengthsError, "loss_tokens of segment 6 is -1, below 0"),
        ({"steps": [[[[3]]]]}, PlanMismatchError, "the schedule names packs 3 … 3 and the plan has 3"),
    ],
)
def test_columns_that_do_not_fit_are_named(columns, error, message):
    """A column of another data set would give figures that look fine."""
    with pytest.raises(error, match=message):
        measure(**columns)


def test_no_packs_are_an_error():
    """Nothing to measure."""
    with pytest.raises(InvalidLengthsError, match="no packs"):
        measure([0], [])
