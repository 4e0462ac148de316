"""Random chat templates, and conversations of hostile texts for them: the same for a seed on every machine."""

from __future__ import annotations

import random
from typing import Any

TEXTS = (
    *("\x1f", "\x1c", "a\x1f", "\x1d b", "\x1e\x1f", " ", "\n", "\t", "\x85", "\u2003", "\u200b", "\xa0x", "\u2028"),
    *("ßtraße", "ﬁ", "ŉ", "İstanbul", "ǅ", "e\u0301", "漢字", "👨\u200d👩", "\x00"),
    *(
        "</think>",
        "<think>\nt\n</think>\n\na",
        "<think>",
        "<b>&\"'</b>",
        "&amp;",
        "{{ x }}",
        "{% if %}",
        "%s",
        "\\n",
        '"q"',
    ),
    *(
        "user",
        "assistant",
        "None",
        "none",
        "True",
        "0",
        "1.0",
        "[]",
        "{}",
        "x",
        "a",
        "ab c",
        "A. b.",
        " a\n",
        "https://a.b/c",
    ),
    *("<|im_end|>", "<|im_start|>assistant\n", "a b  c\nd", "aaaa" * 20, "\ue0100\ue011", "\ue015"),
)
"""Texts on which engines, filters and proofs go wrong, if they do."""

_FILTERS = (
    *(
        "trim",
        "upper",
        "lower",
        "title",
        "capitalize",
        "e",
        "escape",
        "forceescape",
        "string",
        "safe",
        "striptags",
        "urlize",
    ),
    *(
        "tojson",
        "length",
        "count",
        "wordcount",
        "first",
        "last",
        "list",
        "string | reverse",
        "sort",
        "unique | list",
        "default('d')",
        "d('d')",
    ),
    *("replace('a', '<')", "indent(2)", "truncate(5)", "center(9)", "int", "float", "list | join('-')", "list | first"),
    *(
        "batch(2) | list",
        "slice(2) | list",
        "select('in', 'ab') | list",
        "reject('eq', 'a') | join",
        "map('upper') | join",
    ),
    *("wordwrap(3)", "format", "urlencode", "xmlattr", "pprint", "tojson(indent=1)", "min", "max"),
)
_METHODS = (
    *(
        ".strip()",
        ".lstrip('\\n')",
        ".rstrip()",
        ".split()",
        ".split() | join(' ')",
        ".split('</think>')[-1]",
        ".upper()",
    ),
    *(
        ".startswith('<think>')",
        ".endswith('\\x1f')",
        ".replace('\\x1f', '')",
        ".title()",
        ".capitalize()",
        ".casefold()",
    ),
    *(
        "[0]",
        "[-1]",
        "[:3]",
        "[::-1]",
        "[1:-1]",
        ".find('a')",
        ".count('a')",
        ".isspace()",
        ".isalpha()",
        ".splitlines()",
    ),
    *(" * 2", " ~ 'x'", " + '>'", " | length * 2", ".encode('utf-8') | length", ".join(['1', '2'])", ".swapcase()"),
)
_QUESTIONS = (
    *("== ''", "== 'a'", "!= '\\x1f'", "in ['a', 'user']", "in 'user'", "is equalto 'a'", "is string", "is defined"),
    *("is none", "is mapping", "is upper", "is lower", "is sameas messages[0].content", "is number", "is iterable"),
    *("> 'b'", "is in 'abc'", "| length > 3", "| length == 1", "| trim", "| trim == ''", "| string | length == 1"),
)
_WHOLE = (
    *(
        "messages | length",
        "messages[0].role == 'system'",
        "messages[-1].content",
        "messages[-1] == m",
        "messages[0] is sameas m",
    ),
    *(
        "messages | selectattr('content', 'equalto', 'user') | list | length",
        "messages | map(attribute='content') | join",
    ),
    *(
        "messages | sort(attribute='content') | first == m",
        "messages | groupby('content') | length",
        "tools",
        "tools is none",
    ),
    *(
        "messages | unique(attribute='content') | list | length",
        "messages | rejectattr('content') | list",
        "m.tool_calls",
    ),
    *(
        "messages | map(attribute='role') | list",
        "messages[:-1] | selectattr('role', 'eq', 'user') | list | count",
        "m.name",
    ),
    *(
        "messages | max(attribute='content') == m",
        "messages | sum(attribute='content', start='')",
        "m.role in 'assistant'",
    ),
    *("loop.first", "loop.last", "loop.index % 2", "loop.index0 == 1", "loop.revindex > 1", "loop.changed(m.content)"),
    *(
        "loop.previtem is defined and loop.previtem.content == m.content",
        "loop.nextitem is defined",
        "ns.seen",
        "ns.text",
    ),
    *(
        "m | length == 2",
        "m | tojson",
        "m.items() | list | length",
        "m.weight",
        "m.weight is defined",
        "m.get('content')",
    ),
    *("m.keys() | list", "m.content is string and m.role == 'user'", "messages[loop.index0 - 1].content | length > 3"),
)


_UNSEEN = (
    *(
        "loop.first",
        "loop.last",
        "loop.index == 2",
        "m.role == 'user'",
        "m.role in ['user', 'tool']",
        "m.content",
        "tools",
    ),
    *("messages | length > 2", "messages[0].role == 'system'", "m.tool_calls", "not m.content", "m.content is string"),
    *(
        "m.name is defined",
        "m.weight is defined",
        "messages[loop.index0 - 1].role != 'tool'",
        "ns.seen",
        "loop.index0 % 2",
    ),
)
"""Conditions that a proof may allow: they ask nothing of a text but whether it is empty."""


class TemplateMaker:
    """Random templates of one seed: half of them nearly write their texts unseen, so that a proof is put to the test.

    >>> TemplateMaker(3).template() == TemplateMaker(3).template()
    True
    """

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self._is_plain, self._has_macro = seed % 2 == 0, False

    def template(self) -> str:
        """Return a template: macros, namespaces and blocks around a loop of messages."""
        pick, one = self._random.random, self._random.choice
        parts = ["{% set ns = namespace(seen=false, text='') %}"]
        if pick() < (0.05 if self._is_plain else 0.3):
            parts.append(
                "{% macro f(x) %}" + one(("{{ x }}", "<{{ x | trim }}>", "{{ x | upper }}")) + "{% endmacro %}"
            )
            self._has_macro = True
        if pick() < 0.5:
            parts.append(
                one(
                    (
                        "{% if tools %}{% for t in tools %}{{ t | tojson }}{% endfor %}{% endif %}",
                        "{% for t in tools or [] %}<{{ t.function.name }}>{% endfor %}",
                        "{% if tools is not none %}{{ tools | tojson }}{% endif %}",
                        "{{ tools | length if tools else '' }}",
                    )
                )
            )
        loop = one(
            ("messages", "messages", "messages", "messages[1:]", "messages[::-1]", "messages | list", "messages[:-1]")
        )
        blocks = [self._turn()] if self._is_plain else [self._block(2) for _ in range(self._random.randint(1, 3))]
        parts += ["{% for m in ", "messages" if self._is_plain else loop, " %}", *blocks, "{% endfor %}"]
        if pick() < (0.02 if self._is_plain else 0.2):
            parts.append("{{ ns.text | trim }}{{ ns.seen }}")
        if pick() < 0.1:
            parts.append(
                "{% for role, group in messages | groupby('role') %}{{ role }}{{ group | length }}{% endfor %}"
            )
        return "".join(parts)

    def _turn(self) -> str:
        """Return a turn with its content once, and conditions, calls and a rare question around it."""
        chance = self._random
        content = chance.choice(("{{ m.content }}", "{{ '<' + m.content + '>' }}", "{{ m['content'] or '' }}"))
        if chance.random() < 0.4:
            content = f"{{% if {self._condition()} %}}{content}{{% else %}}({content}){{% endif %}}"
        parts = ["<|im_start|>{{ m.role }}\n", content, "<|im_end|>\n"]
        if chance.random() < 0.5:
            parts.insert(
                2,
                "{% for c in m.tool_calls or [] %}{{ c.function.name }}:{{ c.function.arguments | tojson }};{% endfor %}",
            )
        for _ in range(chance.randint(0, 2)):
            ornament = chance.choice(("*", "{{ loop.index }}", "{{ m.role }}", "{% set ns.seen = m.role == 'user' %}"))
            parts.insert(chance.randint(0, len(parts)), f"{{% if {self._condition()} %}}{ornament}{{% endif %}}")
        if chance.random() < 0.15:
            parts.insert(chance.randint(0, len(parts)), self._block(0))
        return "".join(parts)

    def _block(self, depth: int) -> str:
        one = self._random.choice
        kinds = ["turn", "turn", "turn", "text", "expression"]
        if depth:
            kinds += ["if", "if", "if", "set", "block", "namespace", "calls", "loop", "filter"]
        kind = one(kinds)
        if kind == "turn":
            return "<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
        if kind == "text":
            return one(("\n", "<s>", "  ", "{{- '\\n' -}}", "{{ loop.index }}"))
        if kind == "expression":
            return f"{{{{ {self._expression()} }}}}"
        inner = self._block(depth - 1)
        if kind == "if":
            other = self._block(depth - 1)
            return f"{{% if {self._condition()} %}}{inner}{{% else %}}{other}{{% endif %}}"
        if kind == "set":
            return f"{{% set y = {self._expression()} %}}{inner}{{{{ y }}}}"
        if kind == "block":
            return f"{{% set y %}}{inner}{{% endset %}}{{{{ y{one(('', ' | trim', ' | length', ' | upper'))} }}}}"
        if kind == "namespace":
            return one(
                (
                    f"{{% set ns.seen = {self._condition()} %}}{inner}",
                    f"{{% set ns.text = ns.text ~ {self._expression()} %}}{inner}",
                    "{% set ns.text = ns.text + m.content %}" + inner,
                )
            )
        if kind == "calls":
            written = one(
                (
                    "c.function.arguments | tojson",
                    "c.function.arguments",
                    "c.function.name | upper",
                    "c.id",
                    "c | tojson",
                )
            )
            return f"{{% for c in m.tool_calls or [] %}}{{{{ c.function.name }}}}({{{{ {written} }}}}){{% endfor %}}{inner}"
        if kind == "filter":
            return f"{{% filter {one(('upper', 'trim', 'e', 'indent(2)'))} %}}{inner}{{% endfilter %}}"
        return one(
            (
                "{% for letter in m.content %}{{ letter }}{% if loop.index > 3 %}{% break %}{% endif %}{% endfor %}",
                f"{{% for o in messages %}}{{% if o.content == m.content %}}{inner}{{% endif %}}{{% endfor %}}",
                "{% for o in messages[:loop.index0] %}{{ o.content }}{% endfor %}" + inner,
                "{% if m.role == 'tool' %}{% continue %}{% endif %}" + inner,
            )
        )

    def _subject(self) -> str:
        return self._random.choice(
            (
                "m.content",
                "m.content",
                "m['content']",
                "(m.content or '')",
                "m.role",
                "messages[0].content",
                "m.name",
                "ns.text",
            )
        )

    def _expression(self) -> str:
        if self._is_plain and self._random.random() < 0.3:
            return self._random.choice(
                ("m.content", "m.role", "'<' + m.content + '>'", "m['content']", "(m.content or 'x')")
            )
        text = self._subject()
        for _ in range(self._random.choice((0, 1, 1, 2))):
            step = self._random.choice(_FILTERS if self._random.random() < 0.6 else _METHODS)
            text = f"({text} | {step})" if step in _FILTERS else f"({text}){step}"
        if self._has_macro and self._random.random() < 0.3:
            text = f"f({text})"
        if self._random.random() < 0.15:
            text = self._random.choice((f"'<' ~ {text}", f"'%s' % {text}", f"'<' + {text}", f"[{text}, 1] | join"))
        return text

    def _condition(self) -> str:
        if self._is_plain and self._random.random() < 0.8:
            return self._random.choice(_UNSEEN)
        if self._random.random() < 0.4:
            return self._random.choice(_WHOLE)
        if self._random.random() < 0.5:
            return f"'{self._random.choice(('a', '</think>', ' ', chr(0x1F), '<'))}' in {self._subject()}"
        return f"{self._expression()} {self._random.choice(_QUESTIONS)}"


def random_rows(seed: int, num_rows: int) -> list[dict[str, Any]]:
    """Return rows of a few shapes of conversations, so that most are filled in after the first of a shape."""
    chance = random.Random(seed)
    texts = [*TEXTS, *("".join(chance.choices("ab<\x1fß \n", k=chance.randint(1, 5))) for _ in range(10))]
    shapes = [_shape(chance) for _ in range(6)]
    rows = []
    for _ in range(num_rows):
        kinds, num_tools = chance.choice(shapes)
        row: dict[str, Any] = {"messages": [_message(kind, chance, texts) for kind in kinds]}
        if num_tools:
            row["tools"] = [
                {"type": "function", "function": {"name": chance.choice(texts), "description": chance.choice(texts)}}
                for _ in range(num_tools)
            ]
        rows.append(row)
    return rows


def _shape(chance: random.Random) -> tuple[list[str], int]:
    kinds = ["system"] if chance.random() < 0.3 else []
    for _ in range(chance.randint(1, 3)):
        kinds += ["user", chance.choice(("assistant", "assistant", "named", "weighted", "empty"))]
        if chance.random() < 0.3:
            kinds += [chance.choice(("call", "call with text")), "tool", "assistant"]
    return kinds, chance.choice((0, 0, 0, 1, 2))


def _message(kind: str, chance: random.Random, texts: list[str]) -> dict[str, Any]:
    text = chance.choice(texts)
    if kind in ("system", "user", "assistant", "tool"):
        return {"role": kind, "content": text}
    if kind == "named":
        return {"role": "assistant", "content": text, "name": chance.choice(texts)}
    if kind == "weighted":
        return {"role": "assistant", "content": text, "weight": chance.choice((0, 1))}
    if kind == "empty":
        return {"role": "assistant", "content": ""}
    call = {"name": chance.choice(texts), "arguments": {chance.choice(texts): chance.choice((*texts, 1, None))}}
    content = text if kind == "call with text" else chance.choice((None, ""))
    return {"role": "assistant", "content": content, "tool_calls": [{"id": "1", "type": "function", "function": call}]}
