"""The planner of streams: its packs, its promise about waiting, and that stopping it changes nothing."""

import json
from collections import defaultdict
from contextlib import nullcontext

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from brimful.base import compiling
from brimful.base.compiling import compiled_forms
from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError, StateError
from brimful.plan.fit.any_fit import next_fit
from brimful.stream.lookahead import LOOKAHEAD_ALGORITHMS, Lookahead
from brimful.stream.stream_packs import StreamLedger, StreamPacks
from brimful.testing.strategies import capacities_and_lengths
from tests.plan import reference


@st.composite
def streams(draw, *, oversized=False):
    """Lengths, and the settings of a planner for them; the tightest promise about waiting is among them."""
    capacity, lengths = draw(capacities_and_lengths(max_capacity=20, oversized=oversized))
    size = draw(st.integers(1, 12))
    settings = {
        "capacity": capacity,
        "size": size,
        "max_wait": size - 1 + draw(st.sampled_from([0, 0, 1, 2, 5, 100])),
        "algorithm": draw(st.sampled_from(LOOKAHEAD_ALGORITHMS)),
        "min_fill": draw(st.sampled_from([0.0, 0.5, 0.9, 1.0])),
    }
    return lengths, settings


def fed(planner, lengths, first=0):
    return planner.add(np.arange(first, first + len(lengths)), np.array(lengths, dtype=np.int32))


def whole(lengths, **settings):
    planner = Lookahead(**settings)
    return StreamPacks.joined([fed(planner, lengths), planner.finish()])


def bytes_of(packs):
    return [array.tobytes() for array in (packs.offsets, packs.sample_ids, packs.starts, packs.lengths)]


def test_six_samples_through_a_window_of_four():
    """The trace of the docstring: what is emitted after each sample, and what stays."""
    planner = Lookahead(capacity=10, size=4, max_wait=8, min_fill=1.0)
    emitted = [fed(planner, [length], first=item).as_lists() for item, length in enumerate([7, 6, 4, 2, 5, 3, 5, 8])]
    assert emitted == [[], [], [], [[1, 2]], [], [[0, 5]], [], [[7, 3], [4, 6]]]
    assert planner.finish().as_lists() == []


@given(case=streams())
def test_same_packs_as_the_slow_reference(case):
    """One sample at a time, lists only: who goes, in which order, and who stays."""
    lengths, settings = case
    assert whole(lengths, **settings).as_lists() == reference.lookahead(lengths, **settings)


@given(case=streams())
def test_no_sample_waits_longer_than_promised(case):
    """A sample whose length suits no other would be put off for ever; here at most ``max_wait`` packs come before it
    after it arrived, for the least ``max_wait`` that is allowed too."""
    lengths, settings = case
    planner = Lookahead(**settings)
    emitted, arrived = 0, []
    waited = []
    for item, length in enumerate(lengths):
        arrived.append(emitted)
        for pack in fed(planner, [length], first=item).as_lists():
            waited += [emitted - arrived[member] for member in pack]
            emitted += 1
    for pack in planner.finish().as_lists():
        waited += [emitted - arrived[member] for member in pack]
        emitted += 1
    assert len(waited) == len(lengths)
    assert max(waited) <= settings["max_wait"]


@st.composite
def many_pieces(draw):
    """Small windows and samples of up to four packs: where the promise is tight."""
    capacity, size = draw(st.integers(2, 12)), draw(st.integers(1, 4))
    lengths = draw(st.lists(st.integers(1, 4 * capacity), min_size=1, max_size=15))
    return lengths, {
        "capacity": capacity,
        "size": size,
        "max_wait": size - 1 + draw(st.integers(0, 3)),
        "algorithm": draw(st.sampled_from(LOOKAHEAD_ALGORITHMS)),
        "min_fill": draw(st.sampled_from([0.0, 0.5, 1.0])),
    }


@given(case=many_pieces())
@example(case=([14, 29, 14], {"capacity": 10, "size": 2, "max_wait": 3, "algorithm": "first_fit", "min_fill": 1.0}))
def test_no_segment_waits_longer_than_promised(case):
    """Segment k of a sample may have ``size - 1 + k`` others before it, each in a pack of its own. Where the promise has
    room for those, it holds for the whole sample; counted from when it enters the window, a segment came later."""
    lengths, settings = case
    capacity, size, max_wait = (settings[name] for name in ("capacity", "size", "max_wait"))
    planner = Lookahead(**settings, overflow="split")
    emitted, arrived, segments = 0, [], 0
    for item, length in enumerate([*lengths, None]):
        arrived.append(emitted)
        packs = planner.finish() if length is None else fed(planner, [length], first=item)
        for ids, starts, _ in packs:
            for sample, start in zip(ids.tolist(), starts.tolist(), strict=True):
                assert emitted - arrived[sample] <= max(max_wait, size - 1 + start // capacity)
                segments += 1
            emitted += 1
        Lookahead(**settings, overflow="split").load_state_dict(planner.state_dict())  # holds the promises to that
    assert segments == planner.ledger.segments


def test_a_lonely_sample_leaves_when_its_time_is_up():
    """6 goes alone among pairs of 5 5, which are full each time. Without the promise: never."""
    lengths = [6] + [5] * 40
    packs = whole(lengths, capacity=10, size=4, max_wait=7, min_fill=1.0).as_lists()
    assert next(number for number, pack in enumerate(packs) if 0 in pack) <= 7
    later = whole(lengths, capacity=10, size=4, max_wait=15, min_fill=1.0).as_lists()
    assert 7 < next(number for number, pack in enumerate(later) if 0 in pack) <= 15


def test_the_least_wait_is_the_least_possible():
    """No two of these share a pack: the third waits for two packs under any planner."""
    assert whole([9, 9, 9, 9], capacity=10, size=3, max_wait=2).as_lists() == [[0], [1], [2], [3]]
    with pytest.raises(SettingsError, match="choose max_wait 2 or more, or size 2"):
        Lookahead(capacity=10, size=3, max_wait=1)


@given(case=streams(), data=st.data())
def test_the_division_into_calls_does_not_matter(case, data):
    """A reader hands over what it has, one row or a thousand: the packs must not tell."""
    lengths, settings = case
    cuts = sorted(data.draw(st.lists(st.integers(0, len(lengths)), max_size=6)))
    planner = Lookahead(**settings)
    parts = [fed(planner, lengths[a:b], first=a) for a, b in zip([0, *cuts], [*cuts, len(lengths)], strict=True)]
    assert bytes_of(StreamPacks.joined([*parts, planner.finish()])) == bytes_of(whole(lengths, **settings))


@given(case=streams(oversized=True), policy=st.sampled_from(["drop", "truncate_left", "split"]), data=st.data())
def test_stopped_and_resumed_is_never_stopped(case, policy, data):
    """Anywhere, with a state that went through JSON, into a new planner: byte for byte, counts too."""
    lengths, settings = case
    settings["overflow"] = policy
    stop = data.draw(st.integers(0, len(lengths)))
    before = Lookahead(**settings)
    first = fed(before, lengths[:stop])
    state = json.loads(json.dumps(before.state_dict()))
    fed(before, lengths[stop:], first=stop)  # what comes after the state does not reach it
    after = Lookahead(**settings)
    after.load_state_dict(state)
    rest = [fed(after, lengths[stop:], first=stop), after.finish()]
    assert bytes_of(StreamPacks.joined([first, *rest])) == bytes_of(whole(lengths, **settings))
    before.finish()
    assert after.ledger == before.ledger


@given(case=streams(oversized=True), policy=st.sampled_from(["drop", "truncate", "truncate_left", "split"]))
def test_every_token_once_or_accounted_for(case, policy):
    """In = emitted + waiting + what the policy cost, after every sample; nothing over capacity, no pack empty."""
    lengths, settings = case
    capacity = settings["capacity"]
    planner = Lookahead(**settings, overflow=policy)
    parts = []
    for item, length in enumerate(lengths):
        parts.append(fed(planner, [length], first=item))
        assert planner.ledger.tokens_in == sum(lengths[: item + 1])  # the ledger checks its sums itself
    packs = StreamPacks.joined([*parts, planner.finish()])
    assert planner.ledger.segments_waiting == planner.ledger.tokens_waiting == 0
    assert (np.diff(packs.offsets) > 0).all()
    if len(packs):
        assert np.add.reduceat(packs.lengths, packs.offsets[:-1]).max() <= capacity
    expected = []
    for item, length in enumerate(lengths):
        if length <= capacity:
            expected.append((item, 0, length))
        elif policy == "split":
            expected += [(item, at, min(capacity, length - at)) for at in range(0, length, capacity)]
        elif policy != "drop":
            expected.append((item, length - capacity if policy == "truncate_left" else 0, capacity))
    found = zip(packs.sample_ids.tolist(), packs.starts.tolist(), packs.lengths.tolist(), strict=True)
    assert sorted(found) == sorted(expected)


def test_the_account_in_numbers():
    """One sample of each fate, by sample and by token."""
    planner = Lookahead(capacity=10, size=3, max_wait=9, overflow="truncate")
    planner.add(np.array([70, 71, 72, 73, 74]), np.array([10, -1, 14, 6, 3]))
    assert planner.ledger == StreamLedger(
        samples_in=5,
        tokens_in=33,
        samples_rejected=1,
        samples_truncated=1,
        tokens_truncated=4,
        segments=4,
        packs_emitted=2,
        segments_emitted=2,
        tokens_emitted=20,
        segments_waiting=2,
        tokens_waiting=9,
    )
    assert planner.finish().as_lists() == [[73, 74]]
    assert planner.ledger.packs_emitted == 3
    split = Lookahead(capacity=10, size=3, max_wait=2, overflow="split")
    split.add(np.array([5]), np.array([25]))
    assert (split.ledger.samples_split, split.ledger.segments) == (1, 3)
    dropped = Lookahead(capacity=10, size=3, max_wait=2, overflow="drop")
    dropped.add(np.array([5]), np.array([25]))
    assert (dropped.ledger.samples_dropped, dropped.ledger.tokens_dropped) == (1, 25)


@given(case=capacities_and_lengths(), algorithm=st.sampled_from(LOOKAHEAD_ALGORITHMS))
def test_a_window_over_everything_plans_as_the_textbook_does(case, algorithm):
    """Nothing leaves before the end: the packs are the algorithm's on the whole data set."""
    capacity, lengths = case
    size = len(lengths) + 1
    packs = whole(lengths, capacity=capacity, size=size, max_wait=3 * size, algorithm=algorithm).as_lists()
    assert packs == sorted(getattr(reference, algorithm)(lengths, capacity), key=min)


@given(case=capacities_and_lengths(max_capacity=12))
def test_next_fit_needs_no_window(case):
    """The open pack stays open from window to window: where no pack holds ``size`` samples, all is as offline."""
    capacity, lengths = case
    packs = whole(lengths, capacity=capacity, size=capacity + 1, max_wait=capacity, algorithm="next_fit", min_fill=0.0)
    assert packs.as_lists() == next_fit(np.array(lengths), capacity=capacity).as_lists()


def test_first_fit_over_a_buffer():
    """Sample i has length i, 1 to 16 in order, 32 tokens: the batches that VeOmni's token budget takes from a buffer."""
    planner = Lookahead(capacity=32, size=16, max_wait=15, algorithm="first_fit", min_fill=0.0)
    lengths = np.arange(1, 17)
    expected = [[1, 2, 3, 4, 5, 6, 7], [8, 9, 10], [11, 12], [13, 14], [15, 16]]
    assert planner.add(lengths, lengths).as_lists() == expected


def test_min_fill_postpones_and_never_drops():
    """4 stays for the 6 that comes later; with min_fill 0 it leaves alone. At the end all leave, however full."""
    lengths = [10, 10, 4, 10, 6, 4]
    settings = {"capacity": 10, "size": 3, "max_wait": 9}
    assert whole(lengths, **settings, min_fill=0.8).as_lists() == [[0], [1], [4, 2], [3], [5]]
    assert whole(lengths, **settings, min_fill=0.0).as_lists() == [[0], [1], [2], [3], [4, 5]]


def test_fill_comes_near_the_bound():
    """A thousand samples ahead: within 0.1 % of the least packs possible, where windows that are emptied are 0.3 % off."""
    lengths = np.clip(np.random.default_rng(0).lognormal(6, 1, 60_000), 1, 4096).astype(np.int32)
    bound = -(-int(lengths.sum()) // 4096)
    kept = len(whole(lengths, capacity=4096, size=1000, max_wait=4000))
    emptied = len(whole(lengths, capacity=4096, size=1000, max_wait=4000, min_fill=0.0))
    assert bound <= kept <= 1.001 * bound
    assert 1.003 * bound < emptied


@pytest.mark.parametrize("algorithm", LOOKAHEAD_ALGORITHMS)
def test_compiled_and_plain_emit_the_same(algorithm):
    """Compiling sets in somewhere in the stream, unnoticed."""
    pytest.importorskip("numba")
    lengths = np.random.default_rng(1).integers(1, 900, 6000)
    found = []
    for use in (True, None, False):
        with pytest.MonkeyPatch.context() as monkeypatch, compiled_forms(use) if use is not None else nullcontext():
            # In the middle of the stream: 3,000 items are missing to what pays.
            monkeypatch.setattr(compiling, "_loaded", set())
            monkeypatch.setattr(compiling, "_work_done", defaultdict(lambda: compiling.WORTH_COMPILING - 3000))
            found.append(bytes_of(whole(lengths, capacity=1000, size=500, max_wait=600, algorithm=algorithm)))
    assert found[0] == found[1] == found[2]


def test_a_planner_goes_on_after_the_end_of_a_stream():
    """An epoch ends, all is emitted, and the next begins in the same planner."""
    planner = Lookahead(capacity=10, size=4, max_wait=4)
    fed(planner, [7, 2])
    assert planner.finish().as_lists() == [[0, 1]]
    assert planner.finish().as_lists() == []
    fed(planner, [5, 5])
    assert planner.finish().as_lists() == [[0, 1]]
    assert planner.ledger.packs_emitted == 2


def test_state_is_small_and_readable():
    """Who waits and the counts; deadlines as runs. Nothing of the past, no arrays, no samples."""
    planner = Lookahead(capacity=10, size=4, max_wait=8)
    fed(planner, [7, 6, 4, 2, 5])
    state = planner.state_dict()
    counts = state.pop("counts")
    assert state == {
        "version": 1,
        "capacity": 10,
        "size": 4,
        "max_wait": 8,
        "algorithm": "best_fit_decreasing",
        "min_fill": 1.0,
        "overflow": "error",
        "sample_ids": [0, 3, 4],
        "starts": None,
        "lengths": [7, 2, 5],
        "deadlines": [[8, 9], [2, 1]],
    }
    assert (counts["samples_in"], counts["packs_emitted"], counts["tokens_emitted"]) == (5, 1, 10)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"capacity": 11}, r"does not fit: capacity \(11 in the state, 10 here\)"),
        ({"version": 0, "algorithm": "best_fit"}, r"version \(0 in the state, 1 here\), algorithm \('best_fit'"),
        ({"lengths": [7, 2]}, "damaged"),
        ({"lengths": [7, 3, 5]}, "damaged: .* 25 tokens accounted for, 24 came in"),
        ({"lengths": [14, -5, 5]}, "damaged: lengths are not from 1 to 10"),
        ({"deadlines": [[8, 9], [2, 2]]}, "damaged: 3 sample ids, 3 lengths, 4 deadlines"),
        ({"deadlines": [[9, 8], [2, 1]]}, "damaged: a sample would wait too long"),
        ({"deadlines": [[8, 10], [2, 1]]}, "damaged: a sample would wait too long"),
        ({"sample_ids": None}, "damaged"),
        ({"counts": {}}, "damaged: KeyError"),
    ],
)
def test_a_state_that_does_not_fit_is_refused(change, message):
    """With its name; and the planner is as it was."""
    planner = Lookahead(capacity=10, size=4, max_wait=8)
    fed(planner, [7, 6, 4, 2, 5])
    other = Lookahead(capacity=10, size=4, max_wait=8)
    with pytest.raises(StateError, match=message):
        other.load_state_dict({**planner.state_dict(), **change})
    assert other.state_dict() == Lookahead(capacity=10, size=4, max_wait=8).state_dict()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"capacity": 0}, "capacity must be from 1 to 2,147,483,647 and is 0"),
        ({"size": 0}, "size must be from 1"),
        ({"size": 2.5}, "size must be a whole number and is 2.5"),
        ({"max_wait": True}, "max_wait must be a whole number and is True"),
        ({"algorithm": "sequential"}, "'sequential' cannot plan a stream: use one of best_fit_decreasing, "),
        ({"min_fill": 90}, "min_fill must be from 0 to 1 and is 90"),
        ({"min_fill": float("nan")}, "min_fill must be from 0 to 1 and is nan"),
        ({"overflow": "ignore"}, "'ignore' is unknown"),
    ],
)
def test_impossible_settings(settings, message):
    with pytest.raises(SettingsError, match=message):
        Lookahead(**{"capacity": 10, "size": 4, "max_wait": 8, **settings})


def test_bad_samples_change_nothing():
    """The error names the sample by the id it was given, and the planner goes on without the call."""
    planner = Lookahead(capacity=10, size=4, max_wait=8)
    fed(planner, [7])
    before = planner.state_dict()
    with pytest.raises(OversizedSampleError, match="sample 81 has 1,200 tokens and a pack holds 10"):
        planner.add(np.array([80, 81]), np.array([3, 1200]))
    with pytest.raises(InvalidLengthsError, match="sample 91 has length 0; the least is 1 token"):
        planner.add(np.array([90, 91]), np.array([3, 0]))
    with pytest.raises(InvalidLengthsError, match="2 sample ids and 1 lengths"):
        planner.add(np.array([90, 91]), np.array([3]))
    with pytest.raises(InvalidLengthsError, match="sample ids must be whole numbers and are float64"):
        planner.add(np.array([0.5]), np.array([3]))
    with pytest.raises(InvalidLengthsError, match="lengths must be whole numbers"):
        planner.add(np.array([1]), np.array([3.5]))
    assert planner.state_dict() == before
    assert planner.add(np.array([], dtype=np.int64), np.array([], dtype=np.int32)).as_lists() == []
