"""Items and phases to make packs with, and packs as tuples of lengths."""

from collections import Counter

import numpy as np
from hypothesis import strategies as st

from brimful.plan.counts.histogram import Histogram
from brimful.planners.phased import (
    CapacityRatio,
    Half,
    Lengths,
    Seeded,
    SizeRange,
    TopN,
)


def histogram(counts):
    return Histogram.of(np.repeat(list(counts), list(counts.values())))


def counts_of(items):
    return dict(zip(items.lengths.tolist(), items.counts.tolist(), strict=True))


def one_by_one(placed):
    """Packs as tuples of lengths, longest first, in the order in which they were made."""
    return [
        tuple(length for length, copies in pattern for _ in range(copies))
        for pattern, times in placed.packs
        for _ in range(times)
    ]


def held_and_left(placed):
    return Counter(length for pack in one_by_one(placed) for length in pack) + Counter(counts_of(placed.left))


@st.composite
def seed_rules(draw):
    whole, share = st.integers(1, 70), st.integers(0, 100).map(lambda percent: percent / 100)
    return draw(
        st.one_of(
            st.builds(Half, st.none() | st.just("mean") | whole),
            st.builds(TopN, st.integers(1, 6)),
            st.lists(whole, min_size=2, max_size=2).map(lambda pair: SizeRange(*sorted(pair))),
            st.builds(SizeRange, most=st.none() | whole),
            st.lists(share, min_size=2, max_size=2).map(lambda pair: CapacityRatio(*sorted(pair))),
            st.builds(Lengths, st.lists(whole, min_size=1, max_size=4).map(tuple)),
        )
    )


@st.composite
def seeded_phases(draw, *, most_items=12, most_rounds=3):
    min_items = draw(st.integers(1, most_items))
    return Seeded(
        draw(seed_rules()),
        min_items=min_items,
        min_fill=draw(st.integers(0, 100)) / 100,
        max_items=draw(st.none() | st.integers(min_items, 20)),
        rounds=draw(st.integers(1, most_rounds)),
        min_placed=draw(st.sampled_from([1, 1, 5])),
        only_over=draw(st.sampled_from([0, 0, 10])),
    )
