"""Exchanges between packs: as full as before, and each pack more like the data."""

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brimful import plan_packs
from brimful.base.compiling import compiled, compiled_forms
from brimful.plan.counts.histogram import Histogram
from brimful.plan.fit.any_fit import next_fit
from brimful.plan.fit.best_fit_decreasing import best_fit_decreasing
from brimful.plan.order import exchange as exchange_module
from brimful.plan.order.diversity import measure_variety
from brimful.plan.order.exchange import _swap, exchange_segments
from brimful.plan.order.shuffle import companion_order, pack_order
from brimful.plan.packing import Packing
from brimful.testing.strategies import capacities_and_lengths
from tests.plan.reference import co_packing_overlap

LONG_TAIL = np.clip(np.rint(np.random.default_rng(0).lognormal(np.log(350), 1.0, 20_000)), 1, 4096).astype(np.int32)


def best_fit(lengths, capacity, *, seed=0, epoch=0):
    items = Histogram.of(lengths)
    runs = best_fit_decreasing(items, capacity=capacity)
    order = companion_order(lengths, items, seed=seed, epoch=epoch)
    return runs.assign(order, pack_order(runs.num_packs, seed=seed, epoch=epoch))


def as_lengths(packing, lengths):
    return [lengths[pack].tolist() for pack in packing.as_lists()]


def alikeness(packing, lengths):
    measured = measure_variety(packing.offsets, lengths[packing.items], sources=None, loss_tokens=None, steps=None)
    return measured.packs.alikeness


def packing_of(lists):
    offsets = np.cumsum([0] + [len(pack) for pack in lists])
    return Packing(offsets, np.concatenate([np.array(pack, dtype=np.int32) for pack in lists]))


def test_two_halves_of_a_four_change_places_with_it():
    """The whole idea: fours with fours and twos with twos become fours with twos, and no pack is fuller or emptier."""
    lengths = np.array([8, 4, 4, 2, 2, 2, 2], dtype=np.int32)
    packs = packing_of([[0], [1, 2], [3, 4, 5, 6]])
    mixed = exchange_segments(packs, lengths, capacity=8, seed=0, epoch=0, alikeness=1)
    assert as_lengths(mixed, lengths) == [[8], [4, 2, 2], [4, 2, 2]]
    assert mixed.offsets.tolist() == [0, 1, 4, 7]


def test_unequal_sums_are_exchanged_within_the_room_of_a_pack():
    """6 3 and 5 4 at 10 have no equal sums; 6 4 and 5 3 is the only other plan of one and one that keeps the limit."""
    lengths = np.array([6, 3, 5, 4], dtype=np.int32)
    found = set()
    for seed in range(20):
        mixed = exchange_segments(packing_of([[0, 1], [2, 3]]), lengths, capacity=10, seed=seed, epoch=0, alikeness=9)
        found.add(tuple(sorted(tuple(sorted(pack)) for pack in as_lengths(mixed, lengths))))
    assert found == {((3, 6), (4, 5)), ((3, 5), (4, 6))}


@pytest.mark.parametrize("lists", [[[0, 1, 2]], [[0], [1], [2]]])
def test_where_nothing_can_be_exchanged_packs_stay(lists):
    """One pack, or packs of one segment that are all the same."""
    lengths = np.array([5, 5, 5], dtype=np.int32)
    mixed = exchange_segments(packing_of(lists), lengths, capacity=15, seed=0, epoch=0, alikeness=1)
    assert as_lengths(mixed, lengths) == as_lengths(packing_of(lists), lengths)


@given(
    case=capacities_and_lengths(),
    seed=st.integers(0, 3),
    aim=st.sampled_from([0.0, 1.0, 3.0]),
    block=st.sampled_from([1 << 16, 5]),
    in_order=st.booleans(),
)
@example(case=(25, [1, 1, 1, 1, 5, 21, 23, 25, 25, 25]), seed=0, aim=1.0, block=5, in_order=False).via(
    "a block that is above its aim for good, beside one that may rise to its own"
)
def test_as_many_packs_none_over_capacity_each_item_once_and_not_more_alike(case, seed, aim, block, in_order):
    """All that a mixed plan promises, for plans that are full and for plans with room."""
    capacity, lengths = case[0], np.array(case[1], dtype=np.int32)
    packs = next_fit(lengths, capacity=capacity) if in_order else best_fit(lengths, capacity)
    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(exchange_module, "_BLOCK_PACKS", block)
        monkeypatch.setattr(exchange_module, "_MAX_ROUNDS", 40)
        mixed = exchange_segments(packs, lengths, capacity=capacity, seed=seed, epoch=0, alikeness=aim)
        again = exchange_segments(packs, lengths, capacity=capacity, seed=seed, epoch=0, alikeness=aim)
    assert len(mixed) == len(packs)
    assert int(np.diff(mixed.offsets).min()) >= 1
    assert max(sum(pack) for pack in as_lengths(mixed, lengths)) <= capacity
    assert sorted(mixed.items.tolist()) == list(range(len(lengths)))
    assert mixed.items.dtype == packs.items.dtype
    assert (mixed.offsets.tolist(), mixed.items.tolist()) == (again.offsets.tolist(), again.items.tolist())
    assert alikeness(mixed, lengths) <= max(aim, alikeness(packs, lengths)) + 1e-6


@given(case=capacities_and_lengths(), seed=st.integers(0, 3))
def test_packs_are_the_same_with_and_without_numba(case, seed):
    """A plan must not depend on what else is installed."""
    pytest.importorskip("numba")
    capacity, lengths = case[0], np.array(case[1], dtype=np.int32)
    packs = best_fit(lengths, capacity)
    results = []
    for use in (True, False):
        with pytest.MonkeyPatch.context() as monkeypatch, compiled_forms(use):
            monkeypatch.setattr(exchange_module, "_MAX_ROUNDS", 40)
            assert (compiled(_swap, 5) is not None) == use, "the form under test is not taken"
            mixed = exchange_segments(packs, lengths, capacity=capacity, seed=seed, epoch=0, alikeness=1)
        results.append((mixed.offsets.tolist(), mixed.items.tolist()))
    assert results[0] == results[1]


def test_the_longest_capacity_does_not_overflow():
    """Squares of loads near 2**31 take 62 bits; sums of them are kept within 64."""
    top = 2**31 - 1
    lengths = np.array([top, top // 2, top // 2, *[top // 4] * 4, top // 2, top // 4, top // 4], dtype=np.int32)
    packs = packing_of([[0], [1, 2], [3, 4, 5, 6], [7, 8, 9]])
    mixed = exchange_segments(packs, lengths, capacity=top, seed=0, epoch=0, alikeness=0)
    assert sorted(len(pack) for pack in mixed.as_lists()) == [1, 3, 3, 3]


def test_a_long_tail_loses_most_of_its_likeness_and_no_fill():
    """Best fit decreasing has alikeness 6 here; what is left is packs that a single long sample fills."""
    packs = best_fit(LONG_TAIL, 4096)
    mixed = exchange_segments(packs, LONG_TAIL, capacity=4096, seed=0, epoch=0, alikeness=1)
    assert len(mixed) == len(packs)
    assert alikeness(packs, LONG_TAIL) > 5
    assert alikeness(mixed, LONG_TAIL) < 2
    shuffled = np.random.default_rng(1).permutation(LONG_TAIL)
    in_turn = next_fit(shuffled, capacity=4096)
    assert alikeness(in_turn, shuffled) > 2 > alikeness(mixed, LONG_TAIL), "chance does no better, at 15 % less fill"
    assert len(in_turn) > 1.1 * len(mixed)


def test_packs_as_varied_as_chance_stay_so_and_meet_others():
    """The aim is chance and not uniformity: what is above is lowered to it, what is below may rise to it."""
    lengths = LONG_TAIL[LONG_TAIL < 500]
    packs = best_fit(lengths, 4096)
    mixed = exchange_segments(packs, lengths, capacity=4096, seed=0, epoch=0, alikeness=1)
    assert alikeness(packs, lengths) > 5
    assert 0.95 < alikeness(mixed, lengths) <= 1
    further = exchange_segments(mixed, lengths, capacity=4096, seed=1, epoch=0, alikeness=1)
    assert 0.95 < alikeness(further, lengths) <= 1
    assert co_packing_overlap(mixed, further) < 0.5


def test_sources_mix_though_nobody_looks_at_them():
    """Sources whose samples differ in length share packs once lengths do."""
    draw = np.random.default_rng(0)
    sources = draw.choice(3, 20_000, p=[0.6, 0.3, 0.1])
    lengths = np.clip(draw.lognormal(np.log(np.array([80, 600, 3000])[sources]), 0.5), 1, 8192).astype(np.int32)
    packs = best_fit(lengths, 8192)
    mixed = exchange_segments(packs, lengths, capacity=8192, seed=0, epoch=0, alikeness=1)
    before, after = (
        measure_variety(p.offsets, lengths[p.items], sources=sources[p.items], loss_tokens=None, steps=None).packs
        for p in (packs, mixed)
    )
    assert before.sources < 1.2
    assert after.sources > 1.4
    assert after.source_distance < before.source_distance - 0.1


def test_another_epoch_has_other_companions_and_the_same_patterns():
    """Asked for, every epoch fills the same patterns with other samples: equal fill, few pairs that meet again."""
    lengths = LONG_TAIL // 16 + 1  # few different lengths
    epochs = [best_fit(lengths, 512, epoch=epoch) for epoch in (0, 1, 0)]
    patterns = [sorted(map(sorted, as_lengths(packs, lengths))) for packs in epochs]
    assert patterns[0] == patterns[1]
    assert co_packing_overlap(epochs[0], epochs[1]) < 0.2
    assert epochs[0].items.tolist() == epochs[2].items.tolist(), "the same epoch is the same plan"


def test_seed_and_epoch_choose_the_exchanges():
    """The same packs to begin with: whatever differs afterwards, mixing did."""
    packs = best_fit(LONG_TAIL, 4096)
    mixed = {
        (seed, epoch): exchange_segments(packs, LONG_TAIL, capacity=4096, seed=seed, epoch=epoch, alikeness=1)
        for seed, epoch in ((0, 0), (0, 1), (1, 0))
    }
    assert co_packing_overlap(mixed[0, 0], mixed[0, 1]) < 0.02
    assert co_packing_overlap(mixed[0, 0], mixed[1, 0]) < 0.02


def test_where_lengths_are_all_different_only_mixing_brings_new_companions():
    """Shuffling equal lengths can do nothing then."""
    lengths = np.random.default_rng(0).choice(np.arange(1, 50_000), 5_000, replace=False).astype(np.int32)
    plain = [best_fit(lengths, 65_536, epoch=epoch) for epoch in (0, 1)]
    assert co_packing_overlap(*plain) == 1
    mixed = [exchange_segments(p, lengths, capacity=65_536, seed=0, epoch=e, alikeness=1) for e, p in enumerate(plain)]
    assert co_packing_overlap(*mixed) < 0.6
    assert len(mixed[0]) == len(mixed[1]) == len(plain[0])


def test_mix_keeps_the_number_of_packs_and_every_sample():
    """Variety at the cost of fill is not what was asked for."""
    lengths = np.random.default_rng(0).lognormal(5, 1, 3000).clip(1, 2048).astype(np.int32)
    plain, mixed = (plan_packs(lengths, capacity=2048, mix=mix) for mix in (False, True))
    mixed.validate(lengths)
    assert mixed.num_packs == plain.num_packs
    assert mixed.fingerprint != plain.fingerprint
    assert mixed.settings.mix is True
