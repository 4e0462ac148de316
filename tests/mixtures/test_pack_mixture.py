"""Plans of mixtures, by the packs that come of them: law by law."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful import LengthTable, Plan, plan_packs
from brimful.errors import PlanMismatchError, SettingsError
from brimful.lengths.targets import Targets
from brimful.mixtures import Mixture, consumed_samples, draws, mixture_stages, plan_stages
from brimful.mixtures.pack_mixture import as_uses, members_of
from brimful.mixtures.proportions import sources_of_record
from brimful.plan import PlanSettings
from tests.plan.frozen import digest_of

LENGTHS = Path(__file__).parents[2].parent / "shared" / "data" / "lengths"
NAMES = {
    "gsm": "gsm8k_train_test__qwen25_chat",
    "sgd": "sgd_train_text_only__qwen25_chat",
    "smile": "smile_zh_multiturn_55k__qwen25_chat",
    "gpt": "gpteacher__qwen25_chat",
}

MIXTURE = Mixture(weights={"a": 1, "b": 1})


def sample_counts(plan):
    return consumed_samples(plan, np.arange(plan.num_packs))


def shares(plan):
    return {source.source: source for source in sources_of_record(plan.outcome.drawn)}


def test_mixed_first_sources_share_packs_and_packed_first_they_do_not():
    """Four samples of each source, two to a pack."""
    packs = {}
    for order in ("mix_then_pack", "pack_then_mix"):
        mixture = Mixture(weights={"a": 1, "b": 1}, order=order)
        plan = plan_packs([3, 3, 3, 3, 1, 1, 1, 1], capacity=4, draw=mixture, sources={"a": 4, "b": 4})
        plan.validate(np.array([3, 3, 3, 3, 1, 1, 1, 1]))
        packs[order] = [sorted({segment.sample_id // 4 for segment in pack}) for pack in plan]
    assert packs["mix_then_pack"] == [[0, 1]] * 4
    assert packs["pack_then_mix"] == [[0], [1], [0]], "the one pack of b is drawn once"


mixtures = st.builds(
    lambda order, unit, end, replacement: Mixture(
        weights={"a": 5, "b": 2, "c": 1}, order=order, unit=unit, replacement=replacement, **end
    ),
    st.sampled_from(["mix_then_pack", "pack_then_mix"]),
    st.sampled_from(["samples", "tokens"]),
    st.sampled_from(
        [{}, {"stop": "all_exhausted"}, {"num_samples": 17}, {"num_tokens": 90}, {"num_packs": 6},
         {"num_samples": 30, "max_passes": {"a": 1}}]
    ),
    st.booleans(),
)  # fmt: skip


@given(
    st.lists(st.integers(1, 14), min_size=12, max_size=40), mixtures, st.integers(0, 2),
    st.sampled_from(["drop", "truncate", "split"]), st.sampled_from(["first_fit", "best_fit_decreasing"]),
)  # fmt: skip
def test_every_plan_of_a_mixture_adds_up(lengths, mixture, epoch, overflow, algorithm):
    """Nothing over capacity, repeats and samples that were not drawn as the ledger says, the same again, and from a file."""
    if overflow == "split" and (mixture.order == "pack_then_mix" or mixture.num_packs):
        overflow = "truncate"
    lengths = np.array(lengths)
    lengths[[0, 4, 8]] = 3  # each source has something that fits
    table = LengthTable({"tokens": lengths.astype(np.int32)}, targets=Targets.of_all_tokens(lengths.astype(np.int32)))
    options = {
        "capacity": 10, "overflow": overflow, "no_target": "keep", "draw": mixture, "epoch": epoch,
        "algorithm": algorithm, "sources": {"a": 4, "b": 4, "c": len(lengths) - 8},
    }  # fmt: skip
    plan = plan_packs(table, **options)
    plan.validate(table)
    ledger, counts = plan.ledger, sample_counts(plan)
    assert np.count_nonzero(counts) == ledger.samples_packed
    assert counts.sum() - ledger.samples_packed == ledger.draws_repeated
    assert int(plan.lengths.sum()) == ledger.tokens_packed
    assert sum(source.draws for source in shares(plan).values()) == counts.sum()
    assert sum(source.left for source in shares(plan).values()) == ledger.samples_not_drawn
    assert plan_packs(table, **options).fingerprint == plan.fingerprint
    if not mixture.replacement and mixture.order == "mix_then_pack" and not mixture.num_packs and not epoch:
        for begin, end in ((0, 4), (4, 8), (8, len(lengths))):
            drawable = counts[begin:end][(lengths[begin:end] <= 10) | (overflow != "drop")]
            assert drawable.max() - drawable.min() <= 1, "a sample came again before another came at all"


def _random_mixture(chance):
    """Packs, account, record and lines of one to four sources, of which some are small, limited or without weight."""
    names = "abcd"[: chance.number(1, 5)]
    sources = {name: chance.number(1, chance.of(4, 12)) for name in names}
    count, capacity = sum(sources.values()), chance.number(6, 20)
    lengths = np.minimum(chance.numbers(1, capacity + chance.of(1, 6), count), chance.of(2, 99)).astype(np.int32)
    targets = chance.of(None, Targets.of_all_tokens(lengths), Targets.of_all_tokens(lengths))
    options = {
        "unit": chance.of("samples", "tokens"),
        "order": chance.of("mix_then_pack", "pack_then_mix"),
        "temperature": chance.of(1, 1, 2, 0.5),
        "replacement": chance.of(False, False, True),
    }
    ends = {"num_samples": chance.number(1, 40), "num_tokens": chance.number(1, 200), "num_packs": chance.number(1, 12)}
    end = chance.of("", "stop", *ends)
    options |= {"stop": "all_exhausted"} if end == "stop" else {end: ends[end]} if end else {}
    limited = {name: chance.number(1, 5) for name in names if chance.of(True, False)}
    options |= chance.of({}, {}, {"max_samples": limited}, {"max_passes": {name: n / 2 for name, n in limited.items()}})
    if chance.of(*[False] * 5, True):
        options = {"weighting": "loss", "unit": options["unit"]}
    weights = {name: chance.of(1, 1, 2, 5, 0) for name in names}
    settings = {
        "epoch": chance.number(3),
        "seed": chance.of(None, 0, 5),
        "overflow": chance.of("drop", "truncate", "split"),
    }
    plan = plan_packs(
        LengthTable({"tokens": lengths}, targets=targets),
        **{"capacity": capacity, "no_target": "keep", "algorithm": chance.of("first_fit", "best_fit_decreasing"), **settings},
        draw=Mixture(weights=weights, **options), sources=sources,
        uses=chance.of(None, None, chance.numbers(0, 3, count)),
    )  # fmt: skip
    lines = [plan.settings.draw.describe(plan.outcome.drawn), *(source.describe() for source in shares(plan).values())]
    return [
        plan.fingerprint,
        plan.bound,
        plan.ledger.as_dict(),
        sample_counts(plan).tolist(),
        lines,
        plan.settings.as_dict(),
    ]


@pytest.mark.parametrize("refill", [2, 50])
def test_random_mixtures_are_what_they_were(refill, monkeypatch):
    """A run that goes on with a newer version draws what it would have drawn, however many draws are made at a time."""
    monkeypatch.setattr(draws, "_LEAST_REFILL", refill)
    assert digest_of(_random_mixture, 300) == "5ea8ae918e63f298"


@pytest.mark.parametrize("order", ["mix_then_pack", "pack_then_mix"])
@pytest.mark.parametrize("end", [{}, {"num_samples": 4}, {"num_tokens": 9}, {"num_packs": 3}])
def test_epochs_go_on_where_the_last_one_ended(order, end):
    """Replayed from the first epoch, or from counts: the same draws; and none is left out for ever."""
    mixture = Mixture(weights={"a": 2, "b": 1}, order=order, **end)
    lengths, sources = [3] * 12 + [2] * 12, {"a": 12, "b": 12}
    total = np.zeros(24, dtype=np.int64)
    for epoch in range(4):
        plan = plan_packs(lengths, capacity=6, draw=mixture, sources=sources, epoch=epoch)
        if order == "mix_then_pack":
            same = plan_packs(lengths, capacity=6, draw=mixture, sources=sources, epoch=epoch, uses=total)
            assert same.fingerprint == plan.fingerprint
        total = consumed_samples(plan, np.arange(plan.num_packs), total)
        for source in (total[:12], total[12:]):
            assert source.max() - source.min() <= 1


@pytest.mark.parametrize("order", ["mix_then_pack", "pack_then_mix"])
def test_a_mix_that_changes_twice_repeats_nothing_before_its_turn(order):
    """Trained in part, changed, resumed, changed again: shares as asked for from then on, nothing measured again."""
    draws = np.random.default_rng(0)
    lengths = np.concatenate([draws.integers(1, 9, 8000), draws.integers(40, 320, 1500)])
    sources, uses = {"short": 8000, "long": 1500}, None
    for weights in ({"short": 1, "long": 9}, {"short": 1, "long": 1}, {"short": 3, "long": 7}):
        mixture = Mixture(weights=weights, unit="tokens", order=order, num_packs=60)
        plan = plan_packs(lengths, capacity=512, draw=mixture, sources=sources, uses=uses)
        plan.validate(lengths)
        assert abs(shares(plan)["long"].realised - mixture.shares["long"]) < 0.02
        before = np.zeros(9500, dtype=np.int64) if uses is None else uses
        uses = consumed_samples(plan, np.arange(35), before)  # the run was stopped at pack 35
        assert int((uses - before).sum()) == sum(len(plan.pack(pack)) for pack in range(35))
        assert uses.max() == 1, "a sample was consumed again while others of its source waited"


@pytest.mark.parametrize("order", ["mix_then_pack", "pack_then_mix"])
@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_shares_within_half_a_per_cent_over_a_hundred_thousand_draws(order, unit):
    """Two sources whose lengths differ 40-fold."""
    draws = np.random.default_rng(1)
    lengths = np.concatenate([draws.integers(2, 10, 60_000), draws.integers(200, 300, 20_000)])
    mixture = Mixture(
        weights={"short": 7, "long": 3}, unit=unit, order=order, num_samples=100_000 if order[0] == "m" else 5000
    )
    plan = plan_packs(lengths, capacity=2048, draw=mixture, sources={"short": 60_000, "long": 20_000}, algorithm="bfd")
    assert abs(shares(plan)["short"].realised - 0.7) < 0.005


@pytest.mark.skipif(not LENGTHS.exists(), reason="needs the real lengths beside the checkout")
@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_real_sources_keep_their_shares_in_full_packs(unit):
    """Four chat data sets, 213 to 612 tokens a sample: one to two to four to three."""
    arrays = {name: np.load(LENGTHS / f"{file}.npy") for name, file in NAMES.items()}
    lengths, sources = np.concatenate(list(arrays.values())), {name: len(array) for name, array in arrays.items()}
    mixture = Mixture(weights={"gsm": 1, "sgd": 2, "smile": 4, "gpt": 3}, unit=unit, num_tokens=4_000_000)
    plan = plan_packs(lengths, capacity=8192, overflow="drop", draw=mixture, sources=sources, algorithm="bfd")
    plan.validate(lengths)
    assert plan.fill_ratio > 0.99
    for source in shares(plan).values():
        assert source.realised == pytest.approx(source.requested, abs=2e-4)


def test_dropped_samples_take_nothing_from_a_share():
    """Half of source a is longer than a pack: it still gives half of the samples."""
    plan = plan_packs(
        [9, 3] * 10 + [3] * 20,
        capacity=6, overflow="drop", draw=Mixture(weights={"a": 1, "b": 1}), sources={"a": 20, "b": 20},
        algorithm="bfd",
    )  # fmt: skip
    assert (shares(plan)["a"].draws, shares(plan)["b"].draws) == (10, 10)
    assert (plan.ledger.samples_dropped, plan.ledger.samples_not_drawn) == (10, 10)


def test_a_plan_with_repeats_opens_as_it_was_saved(tmp_path):
    """Without it the file forgets how often a sample may be there."""
    mixture = Mixture(weights={"a": 1, "b": 4}, stop="all_exhausted", unit="tokens")
    lengths = [5] * 6 + [2] * 4
    plan = plan_packs(lengths, capacity=4, overflow="split", draw=mixture, sources={"a": 6, "b": 4}, seed=3)
    plan.save(tmp_path / "plan.arrow")
    opened = Plan.open(tmp_path / "plan.arrow")
    opened.check_fingerprint()
    opened.validate(np.array(lengths))
    assert (opened.settings, opened.ledger, opened.outcome) == (plan.settings, plan.ledger, plan.outcome)
    assert opened.ledger.draws_repeated > 0


@pytest.mark.parametrize("fault", ["twice", "gap", "gone"])
def test_validate_finds_a_copy_that_is_not_accounted_for(fault):
    """Without it repeats would be an excuse for every error."""
    mixture = Mixture(weights={"a": 1, "b": 4}, stop="all_exhausted")
    lengths = np.array([6] * 6 + [2] * 4)
    plan = plan_packs(lengths, capacity=4, overflow="split", draw=mixture, sources={"a": 6, "b": 4})
    rows = np.flatnonzero((plan.sample_ids < 6) & (plan.starts == 0))
    if fault == "twice":  # the beginning of another sample in place of this one's
        plan.sample_ids = plan.sample_ids.copy()
        plan.sample_ids[rows[0]] = plan.sample_ids[rows[1]]
    elif fault == "gap":
        plan.starts = np.array(plan.starts)
        plan.starts[rows[0]] = 1
    else:  # a whole sample under the name of another
        plan.sample_ids = np.where(plan.sample_ids == 0, 1, plan.sample_ids)
    with pytest.raises(PlanMismatchError):
        plan.validate(lengths)


def test_stages_follow_a_schedule_of_weights_and_capacity():
    """Sixteen steps from all web to all math, with longer packs at the end; each stage has exactly its packs."""
    lengths, sources = np.array([2] * 3000 + [3] * 3000), {"web": 3000, "math": 3000}
    stages = mixture_stages(
        [(0, {"web": 1, "math": 0}), (16, {"web": 0, "math": 1})],
        num_steps=16, steps_per_stage=4, capacities=[(0, 12), (8, 24)],
    )  # fmt: skip
    settings_ = PlanSettings(capacity=12, draw=Mixture(weights={"web": 1, "math": 1}, unit="tokens"))
    plans = plan_stages(lengths, settings_, stages, packs_per_step=8, sources=sources)
    assert [(plan.capacity, plan.num_packs) for plan in plans] == [(12, 32), (12, 32), (24, 32), (24, 32)]
    asked = [stage.weights["web"] for stage in stages]
    assert [shares(plan)["web"].realised for plan in plans] == pytest.approx(asked, abs=0.03)
    total = sum(sample_counts(plan) for plan in plans)
    assert total.max() == 1, "a sample came twice before the others came once"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"sources": {"a": 2}}, "sources.* belongs to .*draw"),
        ({"uses": np.zeros(2, dtype=int)}, "uses.* belongs to .*draw"),
        ({"draw": Mixture(weights={"a": 1}), "sources": {"a": 2}, "groups": [0, 0]}, "draws single samples"),
    ],
)
def test_what_belongs_to_no_mixture_is_refused(options, message):
    """Without it an argument is ignored in silence."""
    with pytest.raises(SettingsError, match=message):
        plan_packs([2, 2], capacity=4, **options)


def test_files_that_were_measured_are_the_sources_by_default():
    """Without it each user counts the rows of the files again."""
    table = LengthTable({"tokens": np.array([1, 2, 3], np.int32)}, provenance={"parts": [["a", 1], ["b", 2]]})
    assert members_of(table, MIXTURE, None)[1].tolist() == [0, 1, 3]
    table.provenance["parts"].append(["b", 1])
    with pytest.raises(SettingsError, match="do not say which sample is of which source"):
        members_of(table, MIXTURE, None)


@pytest.mark.parametrize(
    ("sources", "error", "message"),
    [
        (None, SettingsError, "do not say which sample is of which source"),
        ({"a": 3}, SettingsError, "weights for a, b, and the sources are a: give one weight for each source"),
        ({"a": 1, "b": 1, "c": 1}, SettingsError, "weights for a, b, and the sources are a, b, c"),
        ({"a": 1, "b": 1}, PlanMismatchError, "2 samples and the lengths 3"),
        ({"a": 2, "b": 2}, PlanMismatchError, "4 samples and the lengths 3"),
        ({"a": 3, "b": 0}, SettingsError, "samples of b must be a whole number of at least 1"),
    ],
)
def test_sources_that_do_not_fit_are_refused(sources, error, message):
    """Without it samples are counted for another source."""
    with pytest.raises(error, match=message):
        members_of(LengthTable.from_lengths([1, 2, 3]), MIXTURE, sources)


@pytest.mark.parametrize("uses", [[1, 2, 3], [1], [0, -1], [0.0, 1.0], [[1, 2]]])
def test_counts_of_other_samples_are_refused(uses):
    """Without it the counts of another data set decide which samples are drawn."""
    with pytest.raises(SettingsError, match="each of the 2 samples was consumed"):
        as_uses(np.array(uses), 2)
