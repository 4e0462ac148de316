"""Spans of several filled texts are those of the answers in each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.encode.fast.skeleton import Skeleton, Turn, message_texts, spans_of_filled, verbatim_texts
from brimful.encode.turns import TurnFinder
from brimful.sources.sample import MixedMessages, PlainMessages


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


def test_values_go_to_their_slots():
    """In their order, or in that of the template; the answers are slots with characters of the template around them."""
    turns = (Turn(first=0, last=0, head=1, tail=2), Turn(first=1, last=2, head=0, tail=1))
    plain = Skeleton(("<a>", "-b-", "|", "<end>"), turns)
    assert plain.places.tolist() == [[0, 1, 1, 2], [2, 5, 0, 1]]
    filled = plain.filled(["x", "yy", ""])
    assert filled.text == "<a>x-b-yy|<end>"
    assert filled.pieces == ["<a>", "x", "-b-", "yy", "|", "", "<end>"]
    assert [filled.text[start:end] for start, end in filled.spans] == [">x-b", "yy|<"]
    turned = Skeleton(plain.literals, turns, order=(2, 0, 1))
    assert turned.filled(["x", "yy", "z"]).text == "<a>z-b-x|yy<end>"
    assert plain.filled(["1", "2", "3"]).text == "<a>1-b-2|3<end>"  # nothing is left of the values before
    assert Skeleton(("all",), ()).filled([]).text == "all"
    assert Skeleton(("all",), ()).places.shape == (0, 4)


CALL: dict[str, Any] = {"name": "f", "arguments": {"x": "é"}}


@pytest.mark.parametrize(
    ("message", "texts"),
    [
        ({"content": "a"}, ["a"]),
        ({"content": "", "tool_calls": [CALL]}, ["f", '{"x": "é"}']),
        ({"content": "a", "tool_calls": [{"function": CALL}, {"name": "g", "arguments": "{}"}]}, ["a", "f", '{"x": "é"}', "g", "{}"]),
        ({"tool_calls": [{"name": "f", "arguments": {}}]}, ["f", "{}"]),
        # What a template makes of these is nobody's text.
        ({"content": "a", "tool_calls": [{"name": "f", "arguments": ""}]}, []),
        ({"content": "a", "tool_calls": [{"name": "f"}]}, []),
        ({"content": "a", "tool_calls": [{"name": "f", "arguments": []}]}, []),
        ({"content": None}, []),
        ({}, []),
    ],
)  # fmt: skip
def test_texts_of_a_message(message, texts):
    assert message_texts(message) == texts


def test_texts_of_a_conversation():
    """In the order of the messages, then of the tools; none if one of them has none."""
    rows: list[dict[str, Any]] = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
        {"role": "user", "content": "b"},
        {"role": "assistant", "content": "c", "weight": 1},
    ]
    arguments = '{"x": "é"}'
    expected = ["a", "f", arguments, "f", arguments, "b", "c"]
    assert verbatim_texts(rows) == expected
    mixed = MixedMessages.of(rows)
    assert mixed is not None
    assert verbatim_texts(mixed) == expected
    plain = PlainMessages.of(rows[::2])
    assert plain is not None
    assert verbatim_texts(plain) == ["a", "b"]
    assert verbatim_texts(plain, [{"name": "t"}, {}]) == ["a", "b", '{"name": "t"}', "{}"]
    assert verbatim_texts(plain, []) == ["a", "b"]
    assert verbatim_texts(plain, [{}, "t"]) is None
    empty = [*rows, {"role": "assistant", "content": ""}]
    assert verbatim_texts(empty) is None
    assert verbatim_texts(empty, [{}]) is None
