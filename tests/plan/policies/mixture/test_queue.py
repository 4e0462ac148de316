"""The order within one source."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.plan.policies.mixture.queue import Pool, Queue


def queue_of(uses, *, count, replacement=False, allowance=None, epoch=0, name="a"):
    ones = np.ones(len(uses), dtype=np.int64)
    queue = Queue(
        Pool(name, ones, ones, np.array(uses)), seed=0, epoch=epoch, replacement=replacement, allowance=allowance
    )
    queue.grow(count)
    return queue.elements


@given(st.lists(st.integers(0, 3), min_size=1, max_size=12), st.integers(1, 40))
@settings(deadline=None, max_examples=30)
def test_the_least_used_come_first(uses, count):
    """No consumed sample comes again before its turn: at no time are two uses more than a pass apart."""
    counts = np.array(uses)
    for element in queue_of(uses, count=count)[:count]:
        assert counts[element] - counts.min() < max(1, max(uses) - min(uses)) or counts[element] == counts.min()
        assert counts[element] == counts.min() or counts[element] <= max(uses)
        counts[element] += 1
    assert counts.max() - counts.min() <= max(1, max(uses) - min(uses))


def test_a_pass_that_was_begun_goes_on_in_its_order():
    """Three of eight were consumed: the others follow as they would have."""
    whole = queue_of([0] * 8, count=8)[:8]
    uses = np.zeros(8, dtype=int)
    uses[whole[:3]] = 1
    assert queue_of(uses, count=5)[:5].tolist() == whole[3:].tolist()
    assert queue_of(uses, count=13)[5:13].tolist() == queue_of([0] * 8, count=16)[8:16].tolist()


def test_another_source_has_another_order_and_replacement_another_epoch():
    """Without it two copies of a source would be drawn in step."""
    assert queue_of([0] * 50, count=50, name="b").tolist() != queue_of([0] * 50, count=50).tolist()
    drawn = [queue_of([0] * 50, count=50, replacement=True, epoch=epoch).tolist() for epoch in (0, 0, 1)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert len(set(drawn[0][:50])) < 50


def test_an_allowance_ends_a_queue():
    """Without it a small source is repeated without end."""
    assert len(queue_of([0] * 5, count=100, allowance=7)) == 7
