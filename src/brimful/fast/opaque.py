"""Proof that a template writes the texts of messages as they are, without examining any of them.

Except for these texts, such a template's text is the same for all conversations of a shape: it need
not be rendered, only filled in. The proof is a rendering by Jinja with texts that refuse every
operation but a few. A template may write a content or the name of a call, join it to other texts,
and test whether it is empty (which belongs to the shape). It may write the arguments of a call and
a tool as JSON. It may not even write other parts of a message, such as the number of a call. Steps
that would lose track of a text (``~``, macros, ``in`` a text, methods) are not proved.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from brimful.encode.jinja_templates import COUNTED, environment
from brimful.sources.sample import Message

_KEPT = frozenset(
    (
        "__new__",
        "__init__",
        "__class__",
        "__getattribute__",
        "__setattr__",
        "__delattr__",
        "__doc__",
        "__dir__",
        "__init_subclass__",
        "__subclasshook__",
        "__reduce__",
        "__reduce_ex__",
        "__getstate__",
        "__sizeof__",
    )
)
"""Attributes of ``str`` that reveal nothing about a text, or that Python needs."""

_CONTAINER_FILTERS = frozenset(
    (COUNTED, "length", "count", "first", "last", "list", "default", "d")
)
"""Filters of a list of messages that do not look into them."""

_TYPE_TESTS = frozenset(
    (
        "defined",
        "undefined",
        "none",
        "string",
        "mapping",
        "boolean",
        "number",
        "integer",
        "float",
        "true",
        "false",
    )
)
"""Tests with the same result for all texts."""

_PRESENCE_TESTS = frozenset(("defined", "undefined", "none"))
"""Tests that tell only whether a value exists."""

_FUNCTIONS = frozenset(("namespace", "range", "raise_exception"))


class OpaqueError(Exception):
    """The template examines a content."""


class _ProbeText(str):
    """A nonempty text that may be written and joined to others; every other operation is
    refused.
    """

    def __str__(self) -> str:
        return str.__str__(self)

    def __bool__(self) -> bool:
        return True

    def __add__(self, other: Any) -> "_ProbeText":
        return _ProbeText(str.__add__(self, str.__str__(other)))

    def __radd__(self, other: Any) -> "_ProbeText":
        return _ProbeText(str.__add__(other, str.__str__(self)))


class _ProbeObject(dict[str, Any]):
    """A tool, or the arguments of a call: may be written as JSON; every other operation is
    refused.
    """

    __slots__ = ("_value",)  # the sandbox shows no template a name that begins with an underscore

    def __init__(self, value: Mapping[str, Any]) -> None:
        self._value = value


class _Hidden:
    """A value that exists; every operation is refused."""


def _refuse(*_: Any, **__: Any) -> Any:
    raise OpaqueError


for _class, _names in (
    (_ProbeText, set(dir(str)) - set(vars(_ProbeText))),
    (_ProbeObject, {*dir(dict), "__bool__", "__getattr__"}),
    (_Hidden, {*dir(str), "__bool__", "__getattr__"}),
):
    for _name in _names - _KEPT:
        setattr(_class, _name, _refuse)

_PROBES = (_ProbeText, _ProbeObject, _Hidden)


def proved_text(
    source: str,
    variables: Mapping[str, Any],
    messages: Sequence[Message],
    tools: Sequence[Mapping[str, Any]] | None,
) -> str | None:
    """Return the text of a conversation from Jinja if the template writes its texts without
    examining them; else None.

    Then it does so for every conversation of its shape (``open_shape_of``).

    Args:
        source: the template.
        variables: its variables other than the conversation.
        messages, tools: as they are given to the template.

    >>> proved_text("{% for m in messages %}<{{ m.content }}>{% endfor %}", {}, [{"role": "user", "content": "a"}], None)
    '<a>'
    >>> proved_text("{% for m in messages %}{{ m.content | upper }}{% endfor %}", {}, [{"role": "user", "content": "a"}], None)
    """
    try:
        template = _guarded_template(source)
        if template is None:
            return None
        text: str = template.render(
            **variables,
            messages=[_probe_message(message) for message in messages],
            tools=[_ProbeObject(tool) for tool in tools] if tools else None,
            add_generation_prompt=False,
        )
    # After any error nothing is proved, and the template is rendered.
    except Exception:
        return None
    return text


def _probe_message(message: Message) -> dict[str, Any]:
    """Return a message of the same shape whose texts refuse operations."""
    values: dict[str, Any] = {}
    for key, value in message.items():
        if key == "role" or value is None or value == "":
            values[key] = value
        elif key == "content" and type(value) is str:
            values[key] = _ProbeText(value)
        elif key == "tool_calls" and type(value) is list:
            values[key] = [_probe_call(call) for call in value]
        else:
            values[key] = _Hidden()
    return values


def _probe_call(call: Mapping[str, Any]) -> dict[str, Any]:
    if "function" in call:
        return {
            key: _probe_call(value) if key == "function" else _Hidden()
            for key, value in call.items()
        }
    if type(call["name"]) is not str or not call["name"] or type(call["arguments"]) is not dict:
        raise OpaqueError
    veils = {"name": _ProbeText(call["name"]), "arguments": _ProbeObject(call["arguments"])}
    return {key: veils[key] if key in veils else _Hidden() for key in call}


@lru_cache(maxsize=8)
def _guarded_template(source: str) -> Any:
    """Compile a template whose filters and tests refuse contents; None if it has steps that lose
    track of one.
    """
    guarded = environment().overlay()
    guarded.filters = {
        name: _guarded(name, function, _CONTAINER_FILTERS)
        for name, function in guarded.filters.items()
    }
    guarded.tests = {
        name: _guarded(name, function, _TYPE_TESTS) for name, function in guarded.tests.items()
    }
    return guarded.from_string(source) if _keeps_track(guarded.parse(source)) else None


def _keeps_track(tree: Any) -> bool:
    """Return true if every step of a template is one that a content can refuse."""
    from jinja2 import nodes

    if any(
        tree.find_all(
            (
                nodes.Concat,
                nodes.Mod,
                nodes.AssignBlock,
                nodes.FilterBlock,
                nodes.Macro,
                nodes.CallBlock,
            )
        )
    ):
        return False
    for call in tree.find_all(nodes.Call):
        if not isinstance(call.node, nodes.Name) or call.node.name not in _FUNCTIONS:
            return False
    # A text can search itself for another text unseen by the latter: only roles and constants may
    # be searched for.
    for comparison in tree.find_all(nodes.Compare):
        is_search = any(operand.op in ("in", "notin") for operand in comparison.ops)
        if is_search and not (
            isinstance(comparison.expr, nodes.Const) or _is_role(comparison.expr)
        ):
            return False
    return True


def _is_role(expression: Any) -> bool:
    """Return true for ``message.role`` and ``message["role"]``."""
    return "role" in (
        getattr(expression, "attr", None),
        getattr(getattr(expression, "arg", None), "value", None),
    )


def _guarded(
    name: str, function: Callable[..., Any], harmless: Iterable[str]
) -> Callable[..., Any]:
    """Return a filter or test that refuses contents and values that hold one, unless it is
    harmless.
    """
    is_harmless = name in harmless

    def guard(*arguments: Any, **options: Any) -> Any:
        if name == "tojson" and not options and [*map(type, arguments)] == [_ProbeObject]:
            return _ProbeText(function(arguments[0]._value))
        for argument in (*arguments, *options.values()):
            if isinstance(argument, _Hidden) and name not in _PRESENCE_TESTS:
                raise OpaqueError
            # A harmless filter learns nothing from a text itself either: the text refuses its
            # length, for example.
            if not is_harmless and _holds_probe(argument):
                raise OpaqueError
        return function(*arguments, **options)

    # Jinja passes its environment or context to functions with certain attributes.
    guard.__dict__.update(getattr(function, "__dict__", {}))
    return guard


def _holds_probe(value: Any) -> bool:
    if isinstance(value, _PROBES):
        return True
    if isinstance(value, Mapping):
        return any(_holds_probe(inner) for inner in value.values())
    if isinstance(value, (list, tuple)):
        return any(_holds_probe(inner) for inner in value)
    return False
