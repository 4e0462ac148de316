"""A template gives the text of Transformers, whichever engine renders it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="templates need the extra brimful[text]")
pytest.importorskip("minijinja", reason="the fast engine comes with brimful[fast]")

from brimful.encode import ChatEncoder
from brimful.encode.chat_template import _text_or_none
from brimful.encode.fast_templates import FastTemplate, UnsupportedTemplateError
from brimful.sources import Sample
from tests.encode.templates import STYLES, tokenizer_of

ROLES = st.sampled_from(["system", "user", "assistant"])
CONTENTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12) | st.sampled_from(
    [" a\x1c", "\x85b ", "</think>", "<think>\nx\n</think>\n\ny", "\n", "{{ 1 }}"]
)


@cache
def _encoder(name: str) -> ChatEncoder:
    style = STYLES[name]
    return ChatEncoder(tokenizer_of(style), chat_template=style.template)


@pytest.mark.parametrize("name", STYLES)
@given(turns=st.lists(st.tuples(ROLES, CONTENTS), min_size=1, max_size=6))
def test_texts_are_those_of_transformers(name, turns):
    """Without it a template that strips, splits or counts would give other tokens by the fast engine."""
    encoder = _encoder(name)
    messages = [{"role": role, "content": content} for role, content in turns]
    template = encoder._chat_template
    assert _text_or_none(template.render, messages, None, False) == _text_or_none(
        encoder._apply_template, messages, None, False
    )


def _render(source: str, *contents: str) -> tuple[str, str]:
    """Return the text and the engine for one conversation of a user."""
    encoder = ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=source)
    messages = [{"role": "user", "content": content} for content in contents]
    return encoder._chat_template.render(messages, None), encoder._chat_template.engine


def test_white_space_that_only_python_strips():
    """Jinja strips \\x1c as Python does; the fast engine does not, and so it is not taken for such a template."""
    text, _ = _render("{% for m in messages %}[{{ m.content.strip() }}]{% endfor %}", "a\x1c")
    assert text == "[a]"


def test_white_space_in_conversations_of_many_shapes():
    """After forty shapes a new one is compared with hard texts still, or its second conversation is not stripped."""
    source = "{% for m in messages %}[{{ m.content | trim }}]{% endfor %}"
    template = ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=source)._chat_template
    for num_turns in range(1, 41):
        for content in ("a", "a\x1f"):
            messages = [{"role": "user", "content": content}] * num_turns
            assert template.render(messages, None) == "[a]" * num_turns


def test_hard_texts_are_compared_where_a_turn_stands_for_the_first_time():
    """A template may strip the answer of a tool alone, which comes in the hundredth conversation."""
    source = "{% for m in messages %}[{{ m.content | trim if m.role == 'tool' else m.content }}]{% endfor %}"
    template = ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=source)._chat_template
    assert template.engine.startswith("minijinja ")
    for num_turns in range(1, 41):
        messages = [{"role": "user", "content": "a\x1f"}] * num_turns
        assert template.render(messages, None) == "[a\x1f]" * num_turns
    for content in ("a", "a\x1f"):
        messages = [{"role": "user", "content": content}, {"role": "tool", "content": content}]
        assert template.render(messages, None) == f"[{content}][a]"


@pytest.mark.parametrize(
    ("part", "message_of"),
    [
        ("m.reasoning_content | trim", lambda text: {"reasoning_content": text}),
        ("m.tool_calls[0].function.name | trim", lambda text: {"tool_calls": [{"function": {"name": text}}]}),
        ("m.tool_calls[0].name | trim", lambda text: {"tool_calls": [{"name": text, "arguments": {"a": 1}}]}),
        (
            "m.tool_calls[0].function.arguments.values() | first | trim",
            lambda text: {"tool_calls": [{"function": {"name": "f", "arguments": {"a": text}}}]},
        ),
    ],
)
def test_hard_texts_are_thoughts_and_calls_too(part, message_of):
    """Without it the second conversation has thoughts, or a call, that Transformers strips and the fast engine does not."""
    source = f"{{% for m in messages %}}[{{{{ {part} }}}}]{{% endfor %}}"
    template = ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=source)._chat_template
    assert template.engine.startswith("minijinja ")
    for text in ("a", "a\x1f"):
        assert template.render([{"role": "assistant", "content": "b", **message_of(text)}], None) == "[a]"


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}", "generation"),
        ("{% set x = messages.append(1) %}{{ messages[0].content }}", "'append'"),
        ("{{ messages[0].pop('content') }}", "'pop'"),
        ("{{ messages[0] | attr('content') }}", "'attr'"),
        ("{{ debug() }}{{ messages[0].content }}", "'debug'"),
    ],
)
def test_templates_that_the_fast_engine_does_not_get(source, reason):
    """It would let a template change the rows, which the sandbox forbids."""
    with pytest.raises(UnsupportedTemplateError, match=reason):
        FastTemplate(source, {})


def test_a_template_cannot_change_the_rows():
    """Its refusal is that of Jinja's sandbox."""
    encoder = ChatEncoder(
        tokenizer_of(STYLES["chatml"]), chat_template="{{ messages.append(1) }}{{ messages[0].content }}"
    )
    messages = [{"role": "user", "content": "a"}]
    result = encoder.encode_batch([Sample(0, messages=messages)])[0]
    assert "the chat template refuses it" in str(result)
    assert messages == [{"role": "user", "content": "a"}]


def test_a_shape_that_differs_is_rendered_by_jinja(monkeypatch):
    """The first conversation of each shape is rendered by both."""
    real: Callable[..., str] = FastTemplate.render

    def render(self: FastTemplate, messages: Any, tools: Any, prompt: bool) -> str:
        text = real(self, messages, tools, prompt)
        return text.upper() if messages[0]["role"] == "system" else text

    monkeypatch.setattr(FastTemplate, "render", render)
    template = _encoder.__wrapped__("chatml")._chat_template
    assert "abc" in template.render([{"role": "user", "content": "abc"}], None)
    assert "abc" in template.render([{"role": "system", "content": "abc"}, {"role": "user", "content": "abc"}], None)


@pytest.mark.parametrize("source", ["{{ messages[0]['content'] }}", "{% generation %}x{% endgeneration %}", "{% if %}"])
def test_loading_compiles_a_template_and_refuses_none(fresh_cache, source):
    """A template that cannot be compiled is refused with its first conversation, which has a line and a name."""
    style = STYLES["chatml"]
    template = ChatEncoder(tokenizer_of(style), chat_template=source)._chat_template
    template.load()  # nobody compared it before
    with contextlib.suppress(Exception):
        template.by_reference([{"role": "user", "content": "a"}], None)
    template.load()


def test_the_engine_is_named():
    """A slow job says why it is slow."""
    assert _encoder("chatml")._chat_template.engine.startswith("minijinja ")
    marked = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert _render(marked, "a")[1].startswith("Transformers (minijinja cannot take the template: ")
    slow = ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template="{{ messages[0]['content'].zfill(3) }}")
    assert slow._chat_template.engine == "Jinja (minijinja cannot take the template: it calls 'zfill')"
