"""The order of a stream is a function of its log: every pack once, and the same batches for all ranks."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from brimful.stream.assignment import Assignment, StreamOrder
from brimful.testing.toys import toy_records

SHARDS = st.lists(st.integers(1, 5), max_size=9)


@given(SHARDS, st.integers(1, 4))
def test_every_pack_has_one_position(packs, lanes):
    """A pack without a position is lost, and one with two is trained twice."""
    records = toy_records(packs)
    everything = [(record.seq, row) for record in records for row in range(record.packs)]
    for order in (StreamOrder(assignment, records, lanes) for assignment in Assignment):
        positions = range(order.num_steps(is_full=False) * lanes)
        found = [order.find(position) for position in positions]
        assert sorted((record.seq, row) for record, row in filter(None, found)) == everything
        assert order.find(len(positions) + lanes) is None
        full = order.num_steps(is_full=True)
        assert all(found[: full * lanes])
        assert not found or any(found[-lanes:])
    assert [(record.seq, row) for record, row in filter(None, found)] == everything, "by packs they follow one another"


@given(SHARDS, st.integers(1, 4), st.integers(0, 9))
def test_what_was_found_stays_there(packs, lanes, num_known):
    """A stream grows while ranks read it: a position that moved would be served twice or never."""
    for assignment in Assignment:
        records = toy_records(packs)[:num_known]
        order = StreamOrder(assignment, records, lanes)
        before = [order.find(position) for position in range(50)]
        records += toy_records(packs)[num_known:]
        after = [order.find(position) for position in range(50)]
        assert all(new == old for old, new in zip(before, after, strict=True) if old is not None)
        assert after == [StreamOrder(assignment, records, lanes).find(position) for position in range(50)]


def test_a_rank_reads_its_own_shards_alone():
    """By lanes a node downloads its own part of a stream, not all of it."""
    order = StreamOrder(Assignment.LANE, toy_records([2] * 8), lanes=4)
    shards = {order.find(position)[0].seq for position in range(16) if position % 4 % 2 == 1}
    assert shards == {1, 3, 5, 7}
