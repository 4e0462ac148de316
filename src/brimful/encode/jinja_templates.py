"""Chat templates compiled by Jinja in a sandbox, as in Transformers, but called without its work around each call."""

import datetime
import json
from functools import lru_cache
from typing import Any

_ATTRIBUTES_OF_DICT = frozenset(dir(dict))


def raise_exception(message: str) -> None:
    """Refuse a conversation; templates call this function."""
    import jinja2

    raise jinja2.exceptions.TemplateError(message)


def to_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Write a value as JSON; Jinja's own filter would write HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def strftime_now(form: str) -> str:
    """Return the current time."""
    return datetime.datetime.now().strftime(form)


@lru_cache(maxsize=8)
def compile_template(source: str) -> Any:
    """Compile a chat template in a sandbox whose values cannot be changed.

    Raises:
        jinja2.TemplateSyntaxError: it has a tag that Jinja does not know, such as ``generation``.
    """
    return environment().from_string(source)


@lru_cache(maxsize=1)
def environment() -> Any:
    """Return the sandbox of chat templates, with the filters and functions that Transformers gives them."""
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        def getattr(self, obj: Any, attribute: str) -> Any:
            # Nearly every lookup is for a key of a message. Jinja first looks for an attribute, and raises and catches
            # an error if it finds none: two thirds of a template's time.
            if type(obj) is dict and attribute not in _ATTRIBUTES_OF_DICT:
                return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
            return super().getattr(obj, attribute)

    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    sandbox.filters["tojson"] = to_json
    sandbox.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    sandbox.globals["namespace"] = _namespace_class()
    return sandbox


def _namespace_class() -> Any:
    """Return the class of template namespaces, which refuse names that begin with an underscore."""
    import jinja2

    class SafeNamespace(jinja2.utils.Namespace):
        def __init__(*arguments: Any, **attributes: Any) -> None:
            # As in Jinja's own class: a template may name an attribute ``self``.
            self, *values = arguments
            jinja2.utils.Namespace.__init__(self)
            for name, value in dict(*values, **attributes).items():
                self[name] = value

        def __setitem__(self, name: str, value: Any) -> None:
            if str(name).startswith("_"):
                raise jinja2.exceptions.SecurityError(f"a namespace of a template has no attribute {name!r}")
            super().__setitem__(name, value)

    return SafeNamespace
