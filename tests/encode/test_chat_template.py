"""A template gives the text of Transformers, whichever engine renders it."""

from __future__ import annotations

import contextlib
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("transformers", reason="templates need the extra brimful[text]")

from brimful.encode import ChatEncoder
from brimful.encode.chat_template import _text_or_none
from brimful.errors import BadSampleError
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
    """Without it a template that strips, splits or counts would give other tokens than a trainer that calls Transformers."""
    encoder = _encoder(name)
    messages = [{"role": role, "content": content} for role, content in turns]
    template = encoder._chat_template
    assert _text_or_none(template.render, messages, None, False) == _text_or_none(
        encoder._apply_template, messages, None, False
    )


def test_a_template_cannot_change_the_rows():
    """Jinja's sandbox refuses it."""
    encoder = ChatEncoder(
        tokenizer_of(STYLES["chatml"]), chat_template="{{ messages.append(1) }}{{ messages[0].content }}"
    )
    messages = [{"role": "user", "content": "a"}]
    result = encoder.encode_batch([Sample(0, messages=messages)])[0]
    assert "the chat template refuses it" in str(result)
    assert messages == [{"role": "user", "content": "a"}]


@pytest.mark.parametrize("source", ["{{ messages[0]['content'] }}", "{% generation %}x{% endgeneration %}", "{% if %}"])
def test_loading_compiles_a_template_and_refuses_none(fresh_cache, source):
    """A template that cannot be compiled is refused with its first conversation, which has a line and a name."""
    style = STYLES["chatml"]
    template = ChatEncoder(tokenizer_of(style), chat_template=source)._chat_template
    template.load()  # nobody compared it before
    with contextlib.suppress(Exception):
        template.render([{"role": "user", "content": "a"}], None)
    template.load()


def test_a_comparison_with_transformers_is_remembered_for_its_variables(fresh_cache, monkeypatch):
    """Without it a template that is equal with one variable would be taken for equal with another."""
    renders = []

    def text_or_none(*arguments):
        renders.append(arguments)
        return _text_or_none(*arguments)

    monkeypatch.setattr("brimful.encode.chat_template._text_or_none", text_or_none)
    style = STYLES["chatml"]

    def is_compared(**variables):
        renders.clear()
        encoder = ChatEncoder(tokenizer_of(style), chat_template=style.template, template_kwargs=variables)
        assert encoder._chat_template._jinja_is_equal
        return bool(renders)

    assert [is_compared(a=[1]), is_compared(a=[1]), is_compared(a=[2])] == [True, False, True]
    assert [is_compared(z=[1]), is_compared(z=[1]), is_compared(z=[2])] == [True, False, True]
    # Each sample may have other documents: they are compared once.
    assert not is_compared(z=[1], documents=[{"text": "a"}])


def test_the_engine_is_named():
    """A slow job says why it is slow."""
    tokenizer = tokenizer_of(STYLES["chatml"])
    assert _encoder("chatml")._chat_template.engine == "Jinja"
    marked = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}{% endfor %}"
    assert ChatEncoder(tokenizer, chat_template=marked)._chat_template.engine == "Transformers"


def test_a_fault_of_filling_is_remembered(fresh_cache):
    """After it the template is rendered in later processes, and what was filled in is not used again."""

    def encoder() -> ChatEncoder:
        return ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=STYLES["chatml"].template)

    first = encoder()
    engine_id = first.engine.id
    assert engine_id.endswith(", templates filled")
    assert first._filling.fills_plain_chats
    first.engine.disable(engine_id, "it differed on a row")
    later = encoder()
    assert not later.engine.trusts(engine_id)
    assert (later.engine.id, later._chat_template.engine) == ("", "Jinja")
    assert "(it differed on a row), templates by Jinja" in later.engine.name
    assert not later._filling.fills_plain_chats


@pytest.mark.parametrize("source", ["{% set ns = namespace(_a=1) %}", "{% set ns = namespace() %}{% set ns._a = 1 %}"])
def test_a_namespace_holds_no_hidden_names(source):
    """Transformers refuses them, so its text does not exist."""
    pytest.importorskip("transformers", minversion="5.23")  # which has no release for Python 3.10
    encoder = ChatEncoder(tokenizer_of(STYLES["chatml"]), chat_template=source + "{{ messages[0].content }}")
    with pytest.raises(Exception, match="_a"):
        encoder._apply_template([{"role": "user", "content": "a"}], None, False)
    with pytest.raises(BadSampleError, match=r"the chat template refuses it: .*'_a'"):
        encoder.encode(Sample(0, messages=[{"role": "user", "content": "a"}]))


def test_a_namespace_may_call_an_attribute_self():
    encoder = ChatEncoder(
        tokenizer_of(STYLES["chatml"]), chat_template="{% set ns = namespace({'b': 2}, self=1) %}{{ ns.self + ns.b }}"
    )
    assert encoder._chat_template.render([{"role": "user", "content": "a"}], None) == "3"
