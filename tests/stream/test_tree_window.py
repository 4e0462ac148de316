"""Streams of samples that share their beginnings: the promises of a window, and the packs as trees."""

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.errors import InvalidLengthsError, OversizedSampleError, SettingsError, StateError
from brimful.stream.lookahead import Lookahead
from brimful.stream.stream_packs import StreamPacks
from tests.rl.step_forests import UNIT, counted, forest_of_samples

SETTINGS: dict[str, Any] = {"capacity": 9 * UNIT, "size": 12, "max_wait": 30, "share": "prefixes", "least_shared": 1}


def fed(planner, ids, first=0):
    keys = np.concatenate(ids) if ids else np.empty(0, dtype=np.int32)
    return planner.add(np.arange(first, first + len(ids)), np.array([len(row) for row in ids], np.int32), keys)


def samples_of(packs):
    """Samples of each pack, from the paths of its segments: id, length."""
    for begin, end in zip(packs.offsets[:-1].tolist(), packs.offsets[1:].tolist(), strict=True):
        ids, lengths, parents, starts = (
            column[begin:end].tolist() for column in (packs.sample_ids, packs.lengths, packs.parents, packs.starts)
        )
        found = {}
        for segment, parent in enumerate(parents):
            assert starts[segment] == (starts[parent] + lengths[parent] if parent >= 0 else 0)
            goes_on = (
                segment + 1 < len(ids)
                and parents[segment + 1] == segment
                and ids[segment + 1] == ids[segment]
                and lengths[segment + 1] > 0
            )
            if not goes_on:
                assert ids[segment] not in found
                found[ids[segment]] = starts[segment] + lengths[segment]
        yield found, sum(lengths)


@given(seed=st.integers(0, 10_000), count=st.integers(1, 60), cut=st.integers(0, 60))
def test_every_sample_leaves_once_and_in_time(seed, count, cut):
    """Whole, within the capacity, after at most ``max_wait`` packs; with a stop in between as without."""
    ids = forest_of_samples(seed, samples=count)
    planner = Lookahead(**SETTINGS)
    parts, arrived, emitted = [], [], 0
    for sample, row in enumerate(ids):
        if sample == cut:
            state = json.loads(json.dumps(planner.state_dict()))
            planner = Lookahead(**SETTINGS)
            waiting = [ids[waits] for waits in state["sample_ids"]]
            planner.load_state_dict(state, np.concatenate([np.empty(0, dtype=np.int64), *waiting]))
        arrived.append(emitted)
        parts.append(fed(planner, [row], first=sample))
        emitted += len(parts[-1])
    parts.append(planner.finish())
    packs = StreamPacks.joined(parts)
    together = Lookahead(**SETTINGS)
    whole = StreamPacks.joined([fed(together, ids), together.finish()])
    for name in ("offsets", "sample_ids", "starts", "lengths", "parents"):
        assert getattr(packs, name).tolist() == getattr(whole, name).tolist()
    seen = {}
    for number, (found, tokens) in enumerate(samples_of(packs)):
        distinct, forks, _ = counted(ids, list(found))
        assert tokens == distinct
        assert tokens + forks <= SETTINGS["capacity"]
        assert all(number - arrived[sample] <= SETTINGS["max_wait"] for sample in found)
        assert not seen.keys() & found.keys()
        seen |= found
    assert seen == {sample: len(row) for sample, row in enumerate(ids)}
    ledger = planner.ledger
    assert ledger.tokens_emitted + ledger.tokens_shared == ledger.tokens_in == sum(map(len, ids))
    assert ledger.segments_emitted == count


def test_answers_of_a_prompt_leave_together():
    """Eight answers to each of twenty prompts, whose samples come in turns of four prompts."""
    generator = np.random.default_rng(0)
    prompts = generator.integers(0, 1000, (20, 300))
    order = [prompt for first in range(0, 20, 4) for _ in range(8) for prompt in range(first, first + 4)]
    ids = [np.concatenate([prompts[prompt], generator.integers(1000, 2000, 50)]) for prompt in order]
    planner = Lookahead(capacity=1500, size=64, max_wait=256, share="prefixes")
    packs = StreamPacks.joined([fed(planner, ids), planner.finish()])
    flat = Lookahead(capacity=1500, size=64, max_wait=256)
    lengths = np.array([350] * len(ids))
    num_flat = len(flat.add(np.arange(len(ids)), lengths)) + len(flat.finish())
    assert len(packs) <= 12
    assert num_flat == 40


def test_the_fullest_packs_leave_by_the_tokens_of_their_trees():
    """Four answers of 400 tokens are 160 of a pack of 300, and wait for more; samples of 280 leave."""
    answers = [np.r_[np.arange(80), np.full(20, 1000 + number)] for number in range(4)]
    others = [np.full(280, 2000 + number) for number in range(4)]
    planner = Lookahead(capacity=300, size=8, max_wait=32, share="prefixes")
    emitted = fed(planner, [*answers, *others])
    assert sorted(emitted.sample_ids.tolist()) == [4, 5, 6, 7]
    assert len(planner.finish()) == 1


def test_keys_are_asked_for_and_compared():
    ids = [np.arange(100), np.arange(100)]
    with pytest.raises(SettingsError, match="reads the keys of samples"):
        Lookahead(**SETTINGS).add(np.arange(2), np.array([100, 100]))
    with pytest.raises(SettingsError, match="reads the keys of samples"):
        Lookahead(capacity=10, size=1, max_wait=0).add(np.arange(1), np.array([3]), np.arange(3))
    with pytest.raises(InvalidLengthsError, match="99 keys were given for 100 tokens"):
        Lookahead(**SETTINGS).add(np.arange(1), np.array([100]), np.arange(99))
    planner = Lookahead(**SETTINGS)
    fed(planner, ids)
    with pytest.raises(StateError, match="other samples waited"):
        Lookahead(**SETTINGS).load_state_dict(planner.state_dict(), np.arange(200))


def test_a_sample_that_is_too_long_is_offered_what_trees_can_do():
    with pytest.raises(OversizedSampleError, match=r'Choose overflow="drop" or truncate, or capacity=300$'):
        fed(Lookahead(**SETTINGS), [np.arange(300)])


@pytest.mark.parametrize(
    ("change", "words"),
    [({"algorithm": "next_fit"}, "next_fit keeps the order"), ({"overflow": "split"}, "which .*split.* cuts off")],
    ids=["algorithm", "overflow"],
)
def test_what_trees_have_no_meaning_for_is_refused(change, words):
    with pytest.raises(SettingsError, match=words):
        Lookahead(**SETTINGS | change)
