"""Conversations that are filled in have the text, the tokens and the targets that Jinja gives."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="templates need the extra brimful[text]")

import brimful.fast.filling as filling
from brimful.encode import ChatEncoder
from brimful.encode.chat_template import HARD_CONTENT
from brimful.fast.filling import Filling
from brimful.fast.skeleton import open_shape_of
from brimful.sources import Sample, Source
from brimful.sources.memory import MemoryRows
from tests.encode.templates import STYLES, tokenizer_of


def filling_of(encoder: ChatEncoder) -> Filling:
    assert isinstance(encoder._filling, Filling)
    return encoder._filling


_TURNS = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.content %}{{ m.content }}{% endif %}"
    '{% for c in m.tool_calls or [] %}<call>{"name": "{{ c.function.name }}", {{ c.function.arguments | tojson }}}</call>'
    "{% endfor %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT_OR_JSON = "c.function.arguments if c.function.arguments is string else c.function.arguments | tojson"
_TOOLS = "{% if tools %}<tools>{% for t in tools %}{{ t | tojson }};{% endfor %}</tools>{% endif %}"
TEMPLATES = {
    "tools in front": _TOOLS + _TURNS,
    "tools in the first turn": _TURNS.replace(
        "{{ m.content }}{% endif %}", "{{ m.content }}{% endif %}{% if loop.first %}" + _TOOLS + "{% endif %}"
    ),
    "tools before the last turn": _TURNS.replace(
        "<|im_start|>{{ m.role", "{% if loop.last %}" + _TOOLS + "{% endif %}<|im_start|>{{ m.role"
    ),
    "answers that begin otherwise with tools": _TOOLS
    + _TURNS.replace(
        "{% if m.content", "{% if tools and m.role == 'assistant' %}[T]{% endif %}{% if m.content"
    ).replace("c.function.arguments | tojson", _TEXT_OR_JSON),
}
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


TOOL = st.dictionaries(TEXTS, TEXTS | st.integers() | st.dictionaries(TEXTS, st.none(), max_size=2), max_size=3)


@pytest.fixture(scope="module")
def encoders():
    return {name: _encoder(template) for name, template in TEMPLATES.items()}


def _encoder(template: str) -> ChatEncoder:
    return ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=template)


def _samples(rows: list[dict[str, Any]]) -> list[Sample]:
    return [sample for sample in Source(MemoryRows(rows)).read(0, len(rows)) if isinstance(sample, Sample)]


@pytest.mark.parametrize("name", TEMPLATES)
@given(
    conversations=st.lists(
        st.tuples(st.lists(TURN, min_size=1, max_size=5), st.lists(TOOL, max_size=3)), min_size=1, max_size=6
    )
)
def test_conversations_with_calls_and_tools_are_those_of_the_reference(encoders, name, conversations):
    """Filled, rendered, weighted, with numbers of calls: each has the tokens and targets of Jinja and of ``tokenizers``."""
    encoder = encoders[name]
    samples = _samples([{"messages": turns, **({"tools": tools} if tools else {})} for turns, tools in conversations])
    for _ in range(2):  # a shape is met, and then known
        batch = encoder.begin_encoding(samples)().samples()
        for one, other in zip(batch, encoder.engine.reference.encode_batch(samples), strict=True):
            if isinstance(one, Exception):
                assert str(one) == str(other)
                continue
            assert one.input_ids.tolist() == other.input_ids.tolist()
            assert one.loss_mask.tolist() == other.loss_mask.tolist()


ROW: dict[str, Any] = {
    "messages": [
        {"role": "user", "content": "q"},
        {
            "role": "assistant",
            "content": "",
            "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": {"x": "y"}}}],
        },
        {"role": "tool", "content": "r"},
        {"role": "assistant", "content": "a"},
    ],
    "tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {"name": "g"}}],
}


@pytest.mark.parametrize("name", TEMPLATES)
def test_tools_of_another_row_need_no_other_rendering(name, monkeypatch):
    """Only their number is told: rows with tools of their own would be rendered one and all."""
    encoder = _encoder(TEMPLATES[name])
    encoder.encode_batch(_samples([ROW]))
    other = {**ROW, "tools": [{"type": "function", "function": {"name": name}} for name in "hi"]}
    expected = encoder.engine.reference.encode_batch(_samples([other]))

    def render(*_: Any, **__: Any) -> str:
        raise AssertionError("rendered")

    monkeypatch.setattr(encoder._chat_template, "render", render)
    monkeypatch.setattr(filling_of(encoder), "proved_text", render)
    for one, by_reference in zip(encoder.encode_batch(_samples([other])), expected, strict=True):
        assert not isinstance(one, Exception)
        assert not isinstance(by_reference, Exception)
        assert one.input_ids.tolist() == by_reference.input_ids.tolist()


_BARE = (
    "{% for t in (tools or [])[:1] %}{{ t | tojson }}{% endfor %}{% for m in messages %}{{ m.content }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ " + _TEXT_OR_JSON + " }}{% endfor %}{% endfor %}"
    "{% for t in (tools or [])[1:] %}{{ t | tojson }}{% endfor %}"
)
_RESULTS_IN_TURNS = (
    "{% for m in messages if m.role != 'tool' %}<|im_start|>{{ m.role }}\n{% if m.content %}{{ m.content }}{% endif %}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}{% endfor %}"
    "{% if m.tool_calls %}{% for t in messages if t.role == 'tool' %}({{ t.content }}){% endfor %}{% endif %}"
    "<|im_end|>\n{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TEXT_CALL: dict[str, Any] = {
    **ROW["messages"][1],
    "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
MESSAGES = [{"role": "user", "content": "q"}, *ROW["messages"][1:3], {"role": "assistant", "content": "a"}, TEXT_CALL]


@pytest.mark.parametrize("name", [*TEMPLATES, "bare", "results in turns"])
def test_turns_are_those_that_the_finder_sees(name):
    """Whatever chats came before: texts around an answer that differ may belong to it in different parts."""
    template = {**TEMPLATES, "bare": _BARE, "results in turns": _RESULTS_IN_TURNS}[name]
    filling_here = filling_of(_encoder(template))
    chats = [messages for count in (1, 2) for messages in itertools.product(MESSAGES, repeat=count)]
    rendered = []
    for messages, tools in itertools.product(chats, (None, ROW["tools"])):
        text = filling_here._template.render(messages, tools)
        _, _, filled = filling_here.render(messages, tools)
        if filled is None:
            rendered.append([message["role"] for message in messages])
        else:
            assert filled.text == text
            found = filling_here._finder.spans(messages, tools, text)
            assert [[turn] for turn in filled.turns] == found, (messages, tools)
    assert all("tool" in roles for roles in rendered)
    assert bool(rendered) == (name == "results in turns")
    answer = MESSAGES[3:4], ROW["tools"]
    assert name != "bare" or filling_here.fill(open_shape_of(*answer), *answer), "no tool is within a turn"


def test_calls_that_a_shape_does_not_count_are_rendered():
    """Of a tuple, which rows made in Python may have, only the kind is told: another number must not end the job."""
    filling_here = filling_of(_encoder(TEMPLATES["tools in front"]))
    for count in (1, 2):
        messages = [{**ROW["messages"][1], "tool_calls": (*ROW["messages"][1]["tool_calls"],) * count}]
        assert filling_here.render(messages, None)[1] == filling_here._template.render(messages, None)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("t | tojson", "t | tojson(indent=2)"),
        ("t | tojson", "t.function.name"),
        ("m.content }}", "m.content | trim }}"),
        ("c.function.name", "c.function.name | upper"),
    ],
)
def test_templates_that_look_are_rendered(old, new):
    encoder = _encoder(TEMPLATES["tools in front"].replace(old, new))
    sample = _samples([ROW])[0]
    assert (
        filling_of(encoder).fill(
            open_shape_of(sample.messages or (), sample.tools), sample.messages or (), sample.tools
        )
        is None
    )
    assert encoder.encode(sample).input_ids.tolist() == encoder.engine.reference.encode(sample).input_ids.tolist()


def test_a_text_that_differs_from_jinjas_is_not_filled(monkeypatch):
    """The proof is not a promise: the first conversation of a shape is compared, and hard texts of the first shapes."""
    sample = _samples([ROW])[0]
    shape = open_shape_of(sample.messages or (), sample.tools)
    conversation = shape, sample.messages or (), sample.tools
    encoder = _encoder(TEMPLATES["tools in front"])
    assert filling_of(encoder).fill(*conversation) is not None
    wrong = _encoder(TEMPLATES["tools in front"])
    text = filling_of(wrong).proved_text(*conversation[1:])
    assert text is not None
    monkeypatch.setattr(filling_of(wrong), "proved_text", lambda *_: text + ".")
    assert filling_of(wrong).fill(*conversation) is None
    # A proof with a hole: the template is believed to look at nothing.
    trimming = _encoder(TEMPLATES["tools in front"].replace("m.content }}", "m.content | trim }}"))
    monkeypatch.setattr(filling_of(trimming), "proved_text", lambda *_: text)
    assert filling_of(trimming).fill(*conversation) is None
    monkeypatch.setattr(filling, "_HARD_SHAPES", 0)
    trusting = _encoder(TEMPLATES["tools in front"].replace("m.content }}", "m.content | trim }}"))
    monkeypatch.setattr(filling_of(trusting), "proved_text", lambda *_: text)
    assert filling_of(trusting).fill(*conversation) is not None


def test_together_only_known_shapes_are_filled(monkeypatch):
    """By index: not a shape that is new, a sample with media or a completion, nor messages that were not looked at."""
    encoder = _encoder(TEMPLATES["tools in front"])
    filling_here = filling_of(encoder)
    (one, plain) = _samples([ROW, {"messages": ROW["messages"][:1]}])
    assert filling_here.fill_together([one, plain]) == {}
    for sample in (one, plain):
        shape = open_shape_of(sample.messages or (), sample.tools)
        assert filling_here.fill(shape, sample.messages or (), sample.tools) is not None
    unseen = replace(one, messages=list(one.messages or ()))
    without = replace(plain, messages=None, text="a")
    more: dict[str, Any] = {"completion": "c", "media": (object(),)}
    completed = replace(plain, completion=more["completion"])
    pictured = replace(plain, attachments=more["media"])
    filled = filling_here.fill_together([unseen, one, without, completed, pictured, plain, one])
    assert sorted(filled) == [1, 5, 6]
    for index, sample in ((1, one), (5, plain), (6, one)):
        assert filled[index].text == encoder._chat_template.render(sample.messages or (), sample.tools)
    # A shape that was examined and is rendered is not asked again.
    shape = open_shape_of(plain.messages or (), plain.tools)
    monkeypatch.setitem(filling_here._proved, shape, None)
    assert sorted(filling_here.fill_together([one, plain])) == [0]


def test_hard_texts_are_asked_of_the_first_shapes_alone(monkeypatch):
    """The conversation itself and one of hard texts, each by Jinja."""
    monkeypatch.setattr(filling, "_HARD_SHAPES", 1)
    encoder = _encoder(TEMPLATES["tools in front"])
    rendered = []
    render = encoder._chat_template.render

    def noting(messages, tools, *more):
        rendered.append((messages, tools))
        return render(messages, tools, *more)

    monkeypatch.setattr(encoder._chat_template, "render", noting)
    first, second = _samples([ROW, {"messages": ROW["messages"][:1]}])
    assert filling_of(encoder).fill(open_shape_of(first.messages or (), first.tools), first.messages or (), first.tools)
    hard = [messages for messages, _ in rendered if messages is not first.messages][-1]
    assert [message["content"] for message in hard] == [
        HARD_CONTENT,
        "",
        HARD_CONTENT,
        HARD_CONTENT,
    ]
    assert hard[1]["tool_calls"] == [{"type": "function", "function": filling._HARD_CALL}]
    assert rendered[-1][1] == [filling._HARD_TOOL] * 2
    count = len(rendered)
    assert filling_of(encoder).fill(open_shape_of(second.messages or (), None), second.messages or (), None)
    assert all(messages is not second.messages for messages, _ in rendered[count:])


@settings(max_examples=40)
@given(
    conversations=st.lists(
        st.lists(st.tuples(st.sampled_from(["user", "assistant"]), st.text("aé漢", min_size=1)), min_size=1), max_size=6
    ),
    last_only=st.booleans(),
)
def test_spans_of_several_texts_are_the_answers(conversations, last_only):
    """Without it the labels of a batch would belong to other rows."""
    encoder = ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=STYLES["chatml"].template)
    texts, expected = [], []
    for row, turns in enumerate(conversations):
        _, _, filled_text = encoder._filling.render([{"role": role, "content": text} for role, text in turns], None)
        assert filled_text is not None
        texts.append(filled_text)
        answers = [(row, f"{text}<|im_end|>") for role, text in turns if role == "assistant"]
        expected += answers[-1:] if last_only else answers
    spans = encoder._filling.spans_of_turns(range(len(texts)), texts, last_only=last_only)
    triples = zip(*(column.tolist() for column in spans), strict=True)
    assert [(row, texts[row].text[start:end]) for row, start, end in triples] == expected
