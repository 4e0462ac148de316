"""A template is filled in only if it is proved that it looks at no content."""

from typing import Any

import pytest

pytest.importorskip("jinja2", reason="templates need the extra brimful[text]")

from brimful.encode.jinja_templates import compile_template
from brimful.fast.opaque import proved_text


def by_jinja(source: str, variables: dict[str, Any], messages: Any, tools: Any) -> str:
    text: str = compile_template(source).render(**variables, messages=messages, tools=tools)
    return text


MESSAGES = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] + eos }}{% endfor %}",
        "{% set last = messages[-1].content %}{% for m in messages %}{% if m.content %}{{ m.content }}{% endif %}{% endfor %}",
        "{% for m in messages %}{% if m.content is string and m.role in ['user', 'assistant'] %}{{ m.content }}{% endif %}"
        "{% endfor %}{{ messages | length }}",
        "{% for m in messages %}{{ m.content | default('x') }}{{ m.name | d('y') }}{% endfor %}",
        "{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = ns.x + m.content %}{% endfor %}{{ ns.x }}",
    ],
)
def test_templates_that_only_write(source):
    """What models of chats have, more or less."""
    variables = {"eos": "</s>"}
    assert proved_text(source, variables, MESSAGES, None) == by_jinja(source, variables, MESSAGES, None)


@pytest.mark.parametrize(
    "body",
    [
        "{{ m.content.strip() }}",
        "{{ m.content | trim }}",
        "{{ m.content | length }}",
        "{{ m.content | count }}",
        "{{ m.content | first }}",
        "{{ m.content | last }}",
        "{{ m.content | list }}",
        "{{ m.content | tojson }}",
        "{{ m | tojson }}",
        "{{ m }}",
        "{{ [m.content] | join }}",
        "{{ messages | map(attribute='content') | join }}",
        "{% if m.content == 'a' %}x{% endif %}",
        "{% if 'x' in m.content %}x{% endif %}",
        "{% if m.content in 'abc' %}x{% endif %}",
        "{% if m.content in ['abc'] %}x{% endif %}",
        "{% set y = '<' + m.content %}{% if 'think' in y %}x{% endif %}",
        "{% set y = '<' ~ m.content %}{{ y | upper }}",
        "{% set y %}{{ m.content }}{% endset %}{{ y | upper }}",
        "{% macro f(x) %}{{ x }}{% endmacro %}{{ f(m.content) | upper }}",
        "{{ '%s' % m.content }}",
        "{{ '{}'.format(m.content) }}",
        "{{ m.content[0] }}",
        "{{ m.content * 2 }}",
        "{{ {'a': 1}[m.content] }}",
        "{% for letter in m.content %}{{ letter }}{% endfor %}",
        "{% if loop.changed(m.content) %}x{% endif %}",
        "{{ m.content.split('x')[0] }}",
        "{{ 'abc'.startswith(m.content) }}",
        "{{ m.content | default('x') | upper }}",
        "{% if m.content is equalto 'a' %}x{% endif %}",
        "{{ (m.content, 1) }}",
    ],
)
def test_templates_that_look(body):
    """Each would give another text for another content than the one between its literals."""
    assert proved_text(f"{{% for m in messages %}}{body}{{% endfor %}}", {}, MESSAGES, None) is None


CALLS: list[dict[str, Any]] = [
    {"role": "user", "content": "q"},
    {
        "role": "assistant",
        "content": "",
        "weight": 1,
        "tool_calls": [{"id": "1", "type": "function", "function": {"name": "f", "arguments": {"x": "y"}}}],
    },
    {"role": "tool", "tool_call_id": "1", "name": "f", "content": "r"},
]
EACH_CALL = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"


@pytest.mark.parametrize(
    "body",
    [
        "{{ c.function.name }}{{ c.function.arguments | tojson }}",
        "{% if c.function is defined %}{% set c = c.function %}{% endif %}{{ '<' + c.name }} {{ c['arguments'] | tojson }}",
        "{% if c.function.arguments is mapping %}{{ c.function.name }}{% endif %}",
        "{% if c.id is defined and m.weight is defined and m.tool_calls | length == 1 %}{{ c.function.name }}{% endif %}",
    ],
)
def test_templates_that_only_write_calls(body):
    """What models that call tools have."""
    source = f"{EACH_CALL}{body}{{% endfor %}}{{% endfor %}}"
    assert proved_text(source, {}, CALLS, None) == by_jinja(source, {}, CALLS, None)


@pytest.mark.parametrize(
    "body",
    [
        "{{ c.id }}",
        "{{ c.type }}",
        "{{ messages[-1].name }}",
        "{{ messages[-1]['tool_call_id'] }}",
        "{% if messages[-1].name %}x{% endif %}",
        "{% if m.weight %}x{% endif %}",
        "{% if m.weight == 1 %}x{% endif %}",
        "{% if c.type == 'function' %}x{% endif %}",
        "{% if c.type is string %}x{% endif %}",
        "{% if c.function.name == 'f' %}x{% endif %}",
        "{{ c.function.name | upper }}",
        "{{ c.function.arguments }}",
        "{{ c.function.arguments.x }}",
        "{{ c.function.arguments['x'] }}",
        "{{ c.function.arguments | tojson(indent=2) }}",
        "{{ c.function.arguments | tojson | length }}",
        "{{ c.function.arguments | length }}",
        "{{ c.function.arguments | count }}",
        "{{ c.function.arguments | first }}",
        "{{ c.function.arguments | last }}",
        "{{ c.function.arguments | list }}",
        "{{ c.function.arguments | items | list }}",
        "{% for key in c.function.arguments %}{{ key }}{% endfor %}",
        "{% if c.function.arguments %}x{% endif %}",
        "{% if 'x' in c.function.arguments %}x{% endif %}",
        "{{ c.function | tojson }}",
        "{{ c | tojson }}",
        "{{ m.tool_calls | tojson }}",
        "{{ m | tojson }}",
        "{{ m.tool_calls }}",
    ],
)
def test_templates_that_look_at_calls(body):
    """The number of a call, a field of it, the number of its arguments: each may differ among conversations of a shape."""
    assert proved_text(f"{EACH_CALL}{body}{{% endfor %}}{{% endfor %}}", {}, CALLS, None) is None


@pytest.mark.parametrize("call", [{"name": "f", "arguments": '{"x": 1}'}, {"name": "", "arguments": {}}, {"name": "f"}])
def test_calls_of_other_kinds(call):
    """Arguments that are a text are quoted once more by ``tojson``, and no name is taken for a text to fill in."""
    messages = [{"role": "assistant", "content": "a", "tool_calls": [{"function": call}]}]
    assert proved_text("{% for m in messages %}{{ m.content }}{% endfor %}", {}, messages, None) is None


TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": {"name": "f", "description": "é <b>", "parameters": {"type": "object"}}},
    {"name": "g", "strict": True},
]


@pytest.mark.parametrize(
    "source",
    [
        "{% if tools %}{{ messages[0].content }}{% for t in tools %}<{{ t | tojson }}>{% endfor %}{% endif %}",
        "{% if tools is not none %}{{ tools | length }}{% for t in tools %}{{- '<' + (t | tojson) }}{% endfor %}{% endif %}",
    ],
)
def test_templates_that_only_write_tools(source):
    """Qwen's and others: each tool as JSON."""
    assert proved_text(source, {}, MESSAGES, TOOLS) == by_jinja(source, {}, MESSAGES, TOOLS)


@pytest.mark.parametrize(
    "body",
    [
        "{{ t }}",
        "{{ t.function.name }}",
        "{{ t['function'] | tojson }}",
        "{{ t | tojson(indent=4) }}",
        "{{ t | tojson | length }}",
        "{{ tools | tojson }}",
        "{{ t._value | tojson }}",
        "{{ t | attr('_value') | tojson }}",
        "{% if t.function is defined %}x{% endif %}",
        "{% if 'strict' in t %}x{% endif %}",
        "{% if t %}x{% endif %}",
        "{% for key in t %}{{ key }}{% endfor %}",
        "{% for key, value in t.items() %}{{ key }}{% endfor %}",
    ],
)
def test_templates_that_look_at_tools(body):
    """What a template asks of a tool may differ among rows, whose tools count by their number alone."""
    assert proved_text(f"{{% for t in tools %}}{body}{{% endfor %}}", {}, MESSAGES, TOOLS) is None
