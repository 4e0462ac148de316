"""Ranges in a flat array, against loops over them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brimful.base.ragged import mask_of_ranges


@st.composite
def ranges_in_an_array(draw):
    """Return ranges in any order, which may be empty, touch, overlap and repeat; and the size of the array."""
    count = draw(st.integers(0, 12))
    places = st.integers(0, count)
    return draw(st.lists(st.tuples(places, places), max_size=6)), count


@given(ranges_in_an_array())
def test_an_element_is_marked_where_a_range_holds_it(case):
    """A mark too many trains on the user's words, and one too few loses words of the answer."""
    pairs, count = case
    begins, ends = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    expected = [any(begin <= element < end for begin, end in pairs) for element in range(count)]
    assert mask_of_ranges(begins, ends, count).tolist() == expected
