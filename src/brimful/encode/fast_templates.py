"""Chat templates by ``minijinja``: the engine of Jinja's author in Rust, several times faster on templates.

Templates are code of strangers. Jinja's sandbox forbids them to change what they are given; here only templates run
whose every function, method and filter is one of ``_HARMLESS``, which reads and changes nothing.
"""

import importlib.metadata
from collections.abc import Mapping
from typing import Any

from brimful.encode.jinja_templates import callables_of, raise_exception, to_json
from brimful.encode.json_texts import json_text
from brimful.versions import version_of

_HARMLESS = frozenset(
    (
        *("namespace", "range", "dict", "raise_exception", "loop", "caller", "cycle"),
        *("strip", "lstrip", "rstrip", "split", "rsplit", "splitlines", "startswith", "endswith", "replace", "join"),
        *("upper", "lower", "title", "capitalize", "find", "count", "items", "keys", "values", "get", "isdigit"),
        *("tojson", "trim", "length", "count", "list", "first", "last", "default", "d", "reject", "rejectattr"),
        *("select", "selectattr", "map", "string", "int", "float", "dictsort", "items", "safe", "unique", "reverse"),
        *("sort", "indent", "batch", "min", "max", "sum", "abs", "round", "e", "escape"),
        *("defined", "undefined", "none", "string", "mapping", "iterable", "sequence", "number", "integer", "float"),
        *("boolean", "true", "false", "odd", "even", "divisibleby", "eq", "equalto", "ne", "in", "sameas"),
        *("lt", "gt", "le", "ge", "==", "!=", "<", ">", "<=", ">=", "lessthan", "greaterthan"),
    )
)


class UnsupportedTemplateError(Exception):
    """The fast engine refuses a template; says why."""


def _to_json(value: Any, *options: Any, **named_options: Any) -> str:
    return to_json(value, *options, **named_options) if options or named_options else json_text(value)


class FastTemplate:
    """A chat template compiled by ``minijinja``.

    Args:
        source: the template.
        variables: its variables beside the conversation.

    Raises:
        ImportError: the engine is not installed.
        UnsupportedTemplateError: the template has a tag of its own, or calls something that is not harmless.
    """

    def __init__(self, source: str, variables: Mapping[str, Any]) -> None:
        import jinja2
        import minijinja

        try:
            stranger = min(callables_of(source) - _HARMLESS, default=None)
        except jinja2.TemplateSyntaxError as error:
            raise UnsupportedTemplateError(str(error).splitlines()[0]) from error
        if stranger is not None:
            raise UnsupportedTemplateError(f"it calls {stranger!r}")
        self._environment = minijinja.Environment(trim_blocks=True, lstrip_blocks=True, debug=False)
        self._environment.add_filter("tojson", _to_json)
        self._environment.add_global("raise_exception", raise_exception)
        for name, value in variables.items():
            self._environment.add_global(name, value)
        try:
            self._environment.add_template("chat", source)
        except minijinja.TemplateError as error:
            raise UnsupportedTemplateError(str(error).splitlines()[0]) from error

    @staticmethod
    def version() -> str | None:
        """Return name and version of the engine; None if it is not installed."""
        try:
            return f"minijinja {version_of('minijinja')}"
        except importlib.metadata.PackageNotFoundError:
            return None

    def render(self, messages: Any, tools: Any, add_generation_prompt: bool) -> str:
        """Return the text of a conversation; errors of any class if the template refuses it."""
        text: str = self._environment.render_template(
            "chat", messages=messages, tools=tools, documents=None, add_generation_prompt=add_generation_prompt
        )
        return text
