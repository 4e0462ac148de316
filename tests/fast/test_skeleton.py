"""Skeletons, and the texts that go into them."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from brimful.fast.skeleton import Skeleton, Turn, json_text, message_texts, spans_of_turns, verbatim_texts
from brimful.sources.sample import PartlyPlainMessages, PlainMessages


def test_no_text_has_no_spans():
    spans = spans_of_turns([], [])
    assert [column.tolist() for column in spans] == [[], [], []]
    assert {column.dtype for column in spans} == {np.dtype(np.int64)}


def test_values_go_to_their_slots():
    """In their order, or in the template's; the answers are slots with characters of the template around them."""
    turns = (Turn(start=0, last=1, head=1, tail=2), Turn(start=2, last=5, head=0, tail=1))
    plain = Skeleton(("<a>", "-b-", "|", "<end>"), turns)
    assert plain.table.tolist() == [[0, 1, 1, 2], [2, 5, 0, 1]]
    filled = plain.filled(["x", "yy", ""])
    assert filled.text == "<a>x-b-yy|<end>"
    assert filled.pieces == ["<a>", "x", "-b-", "yy", "|", "", "<end>"]
    assert [filled.text[start:end] for start, end in filled.turns] == [">x-b", "yy|<"]
    turned = Skeleton(plain.literals, turns, order=(2, 0, 1))
    assert turned.filled(["x", "yy", "z"]).text == "<a>z-b-x|yy<end>"
    assert plain.filled(["1", "2", "3"]).text == "<a>1-b-2|3<end>"  # nothing is left of the values before
    assert Skeleton(("all",), ()).filled([]).text == "all"
    assert Skeleton(("all",), ()).table.shape == (0, 4)


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
    mixed = PartlyPlainMessages.of(rows)
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


TEXTS = st.text() | st.sampled_from(['"', "\\", "\x00\x1f\x7f", "\u2028", "</s>", "é漢😀", "\ud800", "{x}"])
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | TEXTS,
    lambda values: st.lists(values, max_size=3) | st.dictionaries(TEXTS, values, max_size=4),
    max_leaves=6,
)


@given(st.dictionaries(TEXTS, TEXTS, max_size=4) | VALUES)
def test_the_text_is_that_of_the_standard_library(value):
    assert json_text(value) == json.dumps(value, ensure_ascii=False)
