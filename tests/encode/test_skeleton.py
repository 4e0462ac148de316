"""Spans of several filled texts are those of the answers in each."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from brimful.encode.skeleton import spans_of_filled
from brimful.encode.turns import TurnFinder


def test_no_text_has_no_spans():
    spans = spans_of_filled([], [])
    assert [column.tolist() for column in spans] == [[], [], []]
    assert {column.dtype for column in spans} == {np.dtype(np.int64)}


def _render(messages, tools, add_generation_prompt):
    """``[role]text;`` for each message; answers have no text behind the header that belongs to nobody."""
    return "".join(f"[{message['role']}]{message['content']};" for message in messages) + "[assistant]" * (
        add_generation_prompt
    )


def _trace(messages, tools):
    raise AssertionError("the text of each message stands in it unchanged")


@given(
    conversations=st.lists(
        st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text("aé漢", min_size=1)), min_size=1), max_size=6
    ),
    last_only=st.booleans(),
)
def test_spans_of_filled_texts_are_the_answers(conversations, last_only):
    finder = TurnFinder(_render, _trace, [";"])
    filled, expected = [], []
    for row, turns in enumerate(conversations):
        messages = [{"role": role, "content": text} for role, text in turns]
        one = finder.fill(tuple(role for role, _ in turns), messages, None)
        assert one is not None
        filled.append(one)
        answers = [(row, f"{text};") for role, text in turns if role == "assistant"]
        expected += answers[-1:] if last_only else answers
    spans = spans_of_filled(range(len(filled)), filled, last_only=last_only)
    triples = zip(*(column.tolist() for column in spans), strict=True)
    assert [(row, filled[row].text[start:end]) for row, start, end in triples] == expected
