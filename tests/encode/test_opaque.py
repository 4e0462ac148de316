"""A template is filled in only if it is proved that it looks at no content."""

import pytest

pytest.importorskip("jinja2", reason="templates need the extra brimful[text]")

from brimful.encode.opaque import writes_unseen

MESSAGES = [{"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}]


@pytest.mark.parametrize(
    "source",
    [
        "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}",
        "{% for m in messages %}{{ '<' + m['role'] + '>' + m['content'] + eos }}{% endfor %}",
        "{% set last = messages[-1].content %}{% for m in messages %}{% if m.content %}{{ m.content }}{% endif %}{% endfor %}",
        "{% for m in messages %}{% if m.content is string and m.role in ['user', 'assistant'] %}{{ m.content }}{% endif %}"
        "{% endfor %}{{ messages | length }}",
        "{% set ns = namespace(x='') %}{% for m in messages %}{% set ns.x = ns.x + m.content %}{% endfor %}{{ ns.x }}",
    ],
)
def test_templates_that_only_write(source):
    """What models of chats have, more or less."""
    assert writes_unseen(source, {"eos": "</s>"}, MESSAGES)


@pytest.mark.parametrize(
    "body",
    [
        "{{ m.content.strip() }}",
        "{{ m.content | trim }}",
        "{{ m.content | length }}",
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
    assert not writes_unseen(f"{{% for m in messages %}}{body}{{% endfor %}}", {}, MESSAGES)
