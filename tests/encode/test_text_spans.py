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
from brimful.sources import Sample, Source
from brimful.sources.memory import MemoryRows
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


CALLING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}<call>{{ c.function.name }}:{{ c.function.arguments | tojson }}</call>{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXTS = st.text('a<é漢"\\ \n', min_size=1, max_size=6)
CALL = st.builds(
    lambda name, arguments: {"id": "1", "type": "function", "function": {"name": name, "arguments": arguments}},
    TEXTS,
    st.dictionaries(TEXTS, TEXTS | st.integers() | st.lists(TEXTS, max_size=2), max_size=3),
)
TURN = st.one_of(
    st.builds(lambda text: {"role": "user", "content": text}, TEXTS),
    st.builds(lambda text: {"role": "assistant", "content": text}, TEXTS),
    st.builds(
        lambda text, weight: {"role": "assistant", "content": text, "weight": weight}, TEXTS, st.sampled_from([0, 1])
    ),
    st.builds(
        lambda text, calls: {"role": "assistant", "content": text, "tool_calls": calls},
        st.sampled_from(["", "x", None]),
        st.lists(CALL, min_size=1, max_size=2),
    ),
    st.builds(lambda text, name: {"role": "tool", "name": name, "tool_call_id": "1", "content": text}, TEXTS, TEXTS),
)


@pytest.fixture(scope="module")
def calling_encoder():
    return ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=CALLING)


@given(conversations=st.lists(st.lists(TURN, min_size=1, max_size=5), min_size=1, max_size=6))
def test_conversations_with_calls_are_those_of_the_reference(calling_encoder, conversations):
    """Filled, rendered, weighted, with numbers of calls: each has the tokens and targets of Jinja and of ``tokenizers``."""
    rows = MemoryRows([{"messages": turns} for turns in conversations])
    samples = [sample for sample in Source(rows).read(0, len(rows)) if isinstance(sample, Sample)]
    for _ in range(2):  # a shape is met, and then known
        batch = calling_encoder.begin_encoding(samples)().samples()
        for one, other in zip(batch, calling_encoder.engine.reference.encode_batch(samples), strict=True):
            if isinstance(one, Exception):
                assert str(one) == str(other)
                continue
            assert one.input_ids.tolist() == other.input_ids.tolist()
            assert one.loss_mask.tolist() == other.loss_mask.tolist()
