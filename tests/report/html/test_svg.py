"""Charts: marks of axes are round, and bars lie where their numbers say."""

import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.report.html.svg import Axis, Bar, Chart, log_axis, percent_axis


def test_marks_of_axes_are_round():
    assert percent_axis("x", 0.87, 1.21).ticks == [0.8, 0.9, 1, 1.1, 1.2, 1.3]
    assert percent_axis("x", 0, 0).ticks[0] == 0
    assert percent_axis("x", 1, 1).end > 1
    assert log_axis("x", 1, 1).ticks == [1, 2]
    assert len(log_axis("x", 1, 2**31).ticks) <= 9
    assert log_axis("x", 16, 1024).fraction(128) == 0.5


def is_round(tick, step):
    """A multiple of a step that is 1, 2 or 5 times a power of ten."""
    digits = f"{step:.12f}".strip("0").replace(".", "").strip("0")
    return digits in ("1", "2", "5") and abs(tick / step - round(tick / step)) < 1e-6


@given(begin=st.floats(-50, 1e5), span=st.floats(1e-3, 1e6))
def test_ticks_are_at_round_numbers_from_end_to_end_of_the_axis(begin, span):
    """62.5 % and step 9, 18, 27 are read wrong; a value outside of the range is drawn on its edge."""
    axis = percent_axis("x", begin, begin + span)
    ticks = axis.ticks
    assert len(ticks) <= 9
    assert len(ticks) >= 2
    assert ticks[0] == axis.start <= begin + 1e-6 * span
    assert ticks[-1] == axis.end >= begin + span - 1e-6 * span
    for one, other in pairwise(ticks):
        assert is_round(one, round(other - one, 9))


def test_a_bar_lies_where_its_numbers_say():
    axis = Axis("x", 0, 4, [0, 4])
    chart = Chart("t", "d", axis, axis)
    chart.bars("one", [Bar(1, 2, 4, "all"), Bar(2, 3, 0, "none"), Bar(3, 4, 0.0001, "little")], gap=0)
    heights = [float(height) for height in re.findall(r' height="([\d.]+)"', chart.svg("c"))]
    whole = 300 - 48 - 48
    assert heights == [whole, 0.0, 1.0]
    begins = [float(x) for x in re.findall(r'<rect class="one" x="([\d.]+)"', chart.svg("c"))]
    width = (480 - 52 - 24) / 4
    assert begins == pytest.approx([52 + width, 52 + 2 * width, 52 + 3 * width])
