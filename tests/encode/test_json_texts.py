"""JSON by the short way is that of the standard library."""

from __future__ import annotations

import json

from hypothesis import given
from hypothesis import strategies as st

from brimful.encode.json_texts import json_text

TEXTS = st.text() | st.sampled_from(['"', "\\", "\x00\x1f\x7f", "\u2028", "</s>", "é漢😀", "\ud800", "{x}"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=4),
    max_leaves=6,
)


@given(st.dictionaries(TEXTS, TEXTS, max_size=4) | VALUES)
def test_the_text_is_that_of_the_standard_library(value):
    assert json_text(value) == json.dumps(value, ensure_ascii=False)
