"""What a template may loop, multiply and pad is bounded, and it writes the same text each time."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("jinja2", reason="templates need the extra brimful[text]")

from brimful.encode import chat_template, jinja_templates
from brimful.encode.chat import ChatEncoder, TrainOn
from brimful.encode.jinja_templates import BoundError, compile_template, trace
from brimful.errors import BadSampleError, SettingsError
from brimful.sources.sample import Sample
from tests.cli.tools import outcome
from tests.encode.templates import tiny_tokenizer

CHAT = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
EACH = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"

ENDLESS = {
    "loops in loops": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "loops over iterators": "{% for a in range(9999)|map('string') %}{% for b in range(9999)|map('string') %}{% endfor %}{% endfor %}",
    "loops over texts": "{% for a in 'ab' * 90000 %}{% for b in 'ab' * 90000 %}{% endfor %}{% endfor %}",
    "macros": "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "recursive loops": "{% for x in [1, 2] recursive %}{{ loop([1, 2]) if loop.depth < 60 }}{% endfor %}",
    "products": "{{ 'a' * 10**9 }}",
    "products in a loop": "{% for a in range(99999) %}{{ 'x' * 100000 }}{% endfor %}",
    "powers": "{{ 10**(10**10) }}",
    **{
        f"width {width}": f"{{{{ {width} }}}}"
        for width in (
            *(
                "'a'.center(10**9)",
                "'a'|center(1000000000)",
                "'a'|center(width=99999 * 99999)",
                "'a'|attr('zfill')(10**9)",
            ),
            *(
                "'a\\nb'|indent(10**9)",
                "{'a': 1}|tojson(indent=1000000000)",
                "[1]|batch(10**9, 'x')|list",
                "[1]|slice(10**9)|list",
            ),
            *(
                "'%999999999d' % 1",
                "'%*d' % (9, 1)",
                "'%-9999999d'|format(1)",
                "'{:>999999999}'.format(1)",
                "'{:>{}}'.format(1, 9)",
            ),
        )
    },
}


@pytest.mark.parametrize("kind", ENDLESS)
def test_a_template_without_bounds_is_refused_by_the_row(kind, monkeypatch):
    """One line with the number of the sample, instead of a job that never ends or of all memory."""
    monkeypatch.setattr(jinja_templates, "_MAX_STEPS", 400_000)
    encoder = ChatEncoder(tiny_tokenizer(), chat_template=EACH + ENDLESS[kind])
    with pytest.raises(BadSampleError, match=r"the chat template refuses it: it (loops or multiplies|may pad)"):
        encoder.encode(Sample(7, messages=CHAT))


def test_the_rendering_that_finds_turns_is_bounded_too():
    with pytest.raises(BoundError):
        trace(EACH + ENDLESS["products"], {}, CHAT)


def test_a_transformers_that_is_not_known_yet_is_not_asked(monkeypatch):
    """It is compared with Jinja on chats of its own, on which it would never end."""
    monkeypatch.setattr(chat_template, "knows_transformers", lambda: False)
    monkeypatch.setattr(chat_template, "load_verdict", lambda subject: None)
    encoder = ChatEncoder(tiny_tokenizer(), chat_template=EACH + ENDLESS["loops in loops"])
    with pytest.raises(BadSampleError, match="the chat template refuses it: it loops or multiplies"):
        encoder.encode(Sample(7, messages=CHAT))


HONEST = [
    EACH,
    "{% for m in messages if m.role != 'x' %}{{ loop.index0 % 2 }}{{ loop.length }}{{ loop.last }}{{ loop.nextitem }}{% else %}none{% endfor %}",
    "{% for m in messages|selectattr('role', 'equalto', 'user') %}{{ loop.length }}{{ m.content }}{% endfor %}",
    "{% for key, value in messages[0].items() %}{{ key }}{{ value }}{% endfor %}{% for m in messages|reverse %}{{ m.content }}{% endfor %}",
    "{{ messages|tojson(indent=4) }}{{ '-' * 40 }}{{ 2**10 }}{{ '%02d %s' % (1, 'a') }}{{ 'a'|indent(4) }}{{ '{:>8} {}'.format(1, 2) }}",
    "{% for m in nothing %}x{% endfor %}{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}{% endfor %}{{ ns.n }}",
    "{% macro f(x) %}[{{ x }}{% if x.a %}{{ f(x.a) }}{% endif %}]{% endmacro %}{{ f({'a': {'a': 1}}) }}{{ \"{'id': 1234567}\" }}",
    "{% for x in messages recursive %}{{ x.content or loop(x.parts) }}{% endfor %}100 % of 20240101",
]


@pytest.mark.parametrize("template", HONEST)
def test_honest_templates_write_what_jinja_writes(template):
    """Also where loops know their length, and for 10,000 turns."""
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    from brimful.encode.jinja_templates import to_json

    plain = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    plain.filters["tojson"] = to_json
    for messages in (CHAT, CHAT * 5_000):
        assert compile_template(template).render(messages=messages) == plain.from_string(template).render(
            messages=messages
        )


RANDOM = [
    "{{ [1, 2]|random }}",
    "{{ ['ab', 'cd']|map('random')|join }}",
    "{% filter random %}ab{% endfilter %}",
    "{{ lipsum(n=1) }}",
]
DATES = ["{% set now = strftime_now %}{{ now('%d') }}", "{{ strftime_now(form) }}"]


@pytest.mark.parametrize("train_on", TrainOn)
@pytest.mark.parametrize("written", [*RANDOM, *DATES])
def test_a_template_that_writes_other_text_each_time_is_refused(written, train_on):
    """Whatever is trained: two runs would have other tokens."""
    encoder = ChatEncoder(tiny_tokenizer(), chat_template=EACH + written, train_on=train_on)
    with pytest.raises(SettingsError, match="in a form that is not a literal, or other text each time"):
        encoder.encode(Sample(7, messages=CHAT))


def test_the_word_random_is_no_random_text():
    encoder = ChatEncoder(
        tiny_tokenizer(), chat_template=EACH + "a random {{ 'random' if messages[0].random else 'x' }}"
    )
    assert encoder.render(Sample(0, messages=CHAT)).endswith("a random x")


@pytest.mark.parametrize("kind", ["loops in loops", "width 'a'.center(10**9)"])
def test_from_the_command_line_and_its_workers(kind, small_qwen: Path, tmp_path: Path):
    (tmp_path / "t.jinja").write_text(EACH + ENDLESS[kind])
    (tmp_path / "a.jsonl").write_text((json.dumps({"messages": CHAT}) + "\n") * 4)
    for num_proc in (1, 2):
        command = ["pack", tmp_path / "a.jsonl", "-o", tmp_path / "o", "--tokenizer", small_qwen, "--max-length", 99]
        code, _, err = outcome(
            *command, "--chat-template", tmp_path / "t.jinja", "--num-proc", num_proc, "--cache-dir", tmp_path / "c"
        )
        (line,) = [line for line in err.splitlines() if line.startswith("error: ")]
        assert code == 2
        assert "a.jsonl:1 (sample 0): the chat template refuses it: it " in line


def test_a_template_may_ask_whether_there_is_a_date():
    """As the templates of Llama do, before they write it in a form that is a literal."""
    template = "{% if strftime_now is defined %}{{ strftime_now('%d') }} {% endif %}" + EACH
    encoder = ChatEncoder(tiny_tokenizer(), chat_template=template, train_on="all", date="2026-11-28")
    assert "strftime_now(" not in encoder._rendered_template
    encoder.encode(Sample(7, messages=CHAT))
