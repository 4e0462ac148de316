"""Spans of a batch are those of its texts, whichever way each was found."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="templates need the extra brimful[text]")

from brimful.encode import ChatEncoder
from brimful.encode.skeleton import spans_of_filled
from brimful.encode.text_spans import TextSpans
from brimful.encode.turns import TurnFinder
from tests.encode.templates import STYLES, chat, tokenizer_of


def test_lists_of_spans_lie_one_behind_the_other():
    spans = TextSpans.joined([TextSpans.of_lists({4: [(0, 3), (5, 9)], 1: []}), TextSpans.of_lists({2: [(1, 1)]})])
    assert [column.tolist() for column in spans] == [[4, 4, 2], [0, 5, 1], [3, 9, 1]]


def test_no_text_has_no_spans():
    for spans in (TextSpans.of_lists({}), spans_of_filled([], [])):
        assert [column.tolist() for column in spans] == [[], [], []]
        assert {column.dtype for column in spans} == {np.dtype(np.int64)}


def _render(messages, tools, add_generation_prompt):
    """``[role]text;`` for each message; answers have no text behind the header that belongs to nobody."""
    return "".join(f"[{message['role']}]{message['content']};" for message in messages) + "[assistant]" * (
        add_generation_prompt
    )


@given(
    conversations=st.lists(
        st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text("aé漢", min_size=1)), min_size=1), max_size=6
    ),
    last_only=st.booleans(),
)
def test_spans_of_filled_texts_are_the_answers(conversations, last_only):
    finder = TurnFinder(_render, [";"])
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


@pytest.mark.parametrize("train_on", ["assistant", "last"])
def test_a_batch_has_the_targets_of_its_samples(train_on):
    """Filled texts are found together; weights, changed texts and refusals one by one: each gets its own."""
    style = STYLES["llama 3"]
    encoder = ChatEncoder(tokenizer_of(style), chat_template=style.template, train_on=train_on)
    weighted = chat("q", "no", "q", "yes")
    weighted.messages[1]["weight"] = 0
    samples = [chat("q", "a"), weighted, chat(" q ", " a "), chat("é", "b", "q2", "漢"), chat("\ud800", "a"), chat("q")]
    batch = encoder.begin_encoding(samples)().samples()
    single = [encoder.begin_encoding([sample])().samples()[0] for sample in samples]
    assert [str(one) for one in batch if isinstance(one, Exception)] == [
        str(one) for one in single if isinstance(one, Exception)
    ]
    pairs = [pair for pair in zip(batch, single, strict=True) if not isinstance(pair[0], Exception)]
    assert len(pairs) == 5
    for one, other in pairs:
        assert one.loss_mask.tolist() == other.loss_mask.tolist()
        assert one.input_ids.tolist() == other.input_ids.tolist()
