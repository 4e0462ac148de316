"""What a producer has taken and not committed: each sample once, and packs for every lane where samples suffice."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.encode.encoded import EncodedSample
from brimful.stream.producer.open_window import PackingWindow
from brimful.stream.producer.packing_producer import PackingProducer
from brimful.stream.producer.settings import ProducerSettings

Stub: Any = SimpleNamespace
"""An object of which only some attributes are asked."""


def filled(lengths, **settings):
    """A window with samples of these lengths, of which each token is its sample."""
    window = PackingWindow(ProducerSettings(**{"capacity": 10, "lookahead": 4, **settings}))
    samples = {
        sample: EncodedSample(np.full(length, sample, np.int32), np.ones(length, bool))
        for sample, length in enumerate(lengths)
    }
    window.add(samples, {"samples_read": len(samples)})
    return window


@settings(max_examples=120)
@given(st.lists(st.integers(1, 10), max_size=14), st.integers(0, 16))
def test_an_emptied_window_has_a_pack_for_each_lane(lengths, least):
    """Training begins when every lane has a pack: full packs are cut further, as often as needed and no more."""
    window, plain = filled(lengths), filled(lengths)
    num_ready, num_waiting = len(window.ready), len(window.segments())
    assert (num_ready == len(lengths) == 0) == window.is_empty
    window.finish(least)
    plain.finish()
    assert len(window.ready) == max(len(plain.ready), min(least, num_ready + num_waiting))
    assert [pack.sample_ids.tolist() for pack in window.ready[:num_ready]] == [
        pack.sample_ids.tolist() for pack in plain.ready[:num_ready]
    ]
    assert sorted(sample for pack in window.ready for sample in pack.sample_ids) == list(range(len(lengths)))
    for pack in window.ready:
        assert pack.input_ids.tolist() == np.repeat(pack.sample_ids, [lengths[i] for i in pack.sample_ids]).tolist()
    assert window.statistics.samples_waiting == len(lengths)
    assert {name: number for name, number in window.counts.items() if number} == (
        {"samples_read": len(lengths)} if lengths else {}
    )


@pytest.mark.parametrize(
    ("sizes", "count"),
    [([], 0), ([1], 0), ([1, 1, 1], 3), ([1, 1, 1, 1], 3), ([9, 1, 1], 2), ([9, 0], 0), ([12], 1), ([0, 12, 1], 2)],
)
def test_a_shard_is_full_by_its_packs_or_by_the_bytes_of_their_media(monkeypatch, sizes, count):
    """Three packs, or ten bytes: a container of pictures would grow without limit."""
    monkeypatch.setattr("brimful.stream.producer.open_window.CONTAINER_BYTES", 10)
    window = PackingWindow(ProducerSettings(capacity=10, packs_per_shard=3))
    window.ready = [Stub(attachments=[Stub(medium=Stub(num_bytes=size))]) for size in sizes]
    assert window.packs_of_shard() == count


@given(
    shards=st.lists(st.integers(1, 6), max_size=9),
    lanes=st.integers(1, 5),
    num_ready=st.integers(1, 20),
    most=st.integers(1, 20),
    num_full=st.sampled_from([0, 2, 5]),
)
def test_the_next_shard_has_what_its_lane_gets_if_the_lowest_is_filled_first(shards, lanes, num_ready, most, num_full):
    """One lane that gets more than the others leaves their ranks without work at the end."""
    records = type("Records", (list,), {"shards": property(lambda self: [Stub(packs=packs) for packs in self])})(shards)
    window = Stub(ready=[None] * num_ready, packs_of_shard=lambda: num_full)
    totals, turn, given = [sum(shards[lane::lanes]) for lane in range(lanes)], len(shards) % lanes, [0] * lanes
    for _ in range(num_ready):
        lowest = min(range(lanes), key=lambda lane: (totals[lane] + given[lane], lane != turn))
        given[lowest] += 1
    own = Stub(_num_lanes=lanes, _window=window, _records=records, _per_shard=most)
    assert PackingProducer._share(own) == min(max(1, given[turn]), num_ready, num_full or most)
