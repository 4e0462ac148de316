"""Messages with other texts, and what is kept of shapes that were examined."""

import pytest

from brimful.encode import jinja_templates
from brimful.encode.jinja_templates import examined, excerpt_of, replace_texts


def test_a_shape_is_examined_once(monkeypatch):
    """Until they are too many: then all begin again, as shapes that never recur fill the memory."""
    monkeypatch.setattr(jinja_templates, "_MAX_SHAPES", 2)
    results: dict[str, str] = {}
    asked = []

    def ask(shape):
        return examined(results, shape, lambda: asked.append(shape) or shape.upper())

    assert [ask(shape) for shape in "abab"] == ["A", "B", "A", "B"]
    assert (asked, results) == (["a", "b"], {"a": "A", "b": "B"})
    assert ask("c") == "C"
    assert results == {"c": "C"}


CALLS = [{"id": "1", "function": {"name": "f", "arguments": {}}}, {"name": "g", "arguments": "x"}]


def test_other_texts_in_a_copy():
    """None leaves a text; of each call, nested or not, the fields that are given change."""
    message = {"role": "assistant", "content": "a", "tool_calls": CALLS}
    other = replace_texts(message, "b", [{"name": "h"}, {"arguments": "y"}])
    assert other == {
        "role": "assistant",
        "content": "b",
        "tool_calls": [{"id": "1", "function": {"name": "h", "arguments": {}}}, {"name": "g", "arguments": "y"}],
    }
    assert message == {"role": "assistant", "content": "a", "tool_calls": CALLS}
    assert replace_texts(message, None, None) == message
    assert replace_texts(message, "", None)["content"] == ""
    assert replace_texts({"role": "user"}, "b", [{"name": "h"}]) == {"role": "user", "content": "b"}
    assert replace_texts({"role": "user", "tool_calls": None}, None, [{}]) == {"role": "user", "tool_calls": None}
    with pytest.raises(ValueError, match="zip"):
        replace_texts(message, None, [{}])


@pytest.mark.parametrize(
    ("message", "excerpt"),
    [
        ({"content": " a\n"}, "'a'"),
        ({"content": "x" * 40}, f"'{'x' * 40}'"),
        ({"content": "x" * 41}, f"'{'x' * 40}…'"),
        ({"content": " \n"}, "no text"),
        ({"content": [{"type": "text"}]}, "no text"),
        ({"tool_calls": CALLS}, "tool calls only"),
        ({"content": "a", "tool_calls": CALLS}, "'a'"),
        ({"content": None, "tool_calls": []}, "no text"),
    ],
)
def test_the_beginning_of_a_text_for_an_error(message, excerpt):
    assert excerpt_of(message) == excerpt
