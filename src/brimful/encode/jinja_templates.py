"""Chat templates by Jinja: compiled, given placeholders, and traced.

A template is compiled in a sandbox, as in Transformers, but called without its work around each
call. To examine it, messages get placeholders for their texts.

Spans of messages in the text are found by a rendering that marks where it writes each of them
(``trace``). Templates write a conversation in loops. The template is compiled once more with a mark
at the beginning of every loop step that takes up a message, and one at the end of such a loop. A
text between two marks belongs to the message taken up last. The marks are not part of the text:
without them it must equal the template's text, character for character.
"""

import datetime
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, NamedTuple, TypeAlias, TypeVar

from brimful.encode.token_places import Span
from brimful.sources.sample import Message

_ATTRIBUTES_OF_DICT = frozenset(dir(dict))

_MAX_STEPS = 4_000_000
"""Maximum of the steps of a template's loops for one conversation, and of what it multiplies: a
second of work, and hundreds of times a long chat.
"""

_STEPS_OF_START = 20
"""Steps that the start of a loop or a macro counts as, by its time."""

_HUGE_WIDTH = re.compile(r"%[-+ #0]*[\d.]*(\d{6}|\*)|\{\w*:\W*(\d{6}|\{)")
"""A width in a format that is huge, or that a value gives."""


class BoundError(Exception):
    """A template loops or pads without bounds."""


def raise_exception(message: str) -> None:
    """Refuse a conversation; templates call this function."""
    import jinja2

    raise jinja2.exceptions.TemplateError(message)


def to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: Any = None,
    separators: Any = None,
    sort_keys: bool = False,
) -> str:
    """Write a value as JSON; Jinja's own filter would write HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


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
    """Return the sandbox of chat templates, with the filters and functions that Transformers gives
    them.
    """
    import jinja2.ext
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Sandbox(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(("*", "**"))

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            size = _size(left), min(_size(right), _MAX_STEPS if operator == "*" else 99)
            _count(context.eval_ctx, super().call_binop(context, operator, *size))
            return super().call_binop(context, operator, left, right)

        def _parse(self, *arguments: Any) -> Any:
            return _bounded(super()._parse(*arguments))

        def getattr(self, obj: Any, attribute: str) -> Any:
            # Nearly every lookup is for a key of a message. Jinja first looks for an attribute, and
            # raises and catches an error if it finds none: two thirds of a template's time.
            if type(obj) is dict and attribute not in _ATTRIBUTES_OF_DICT:
                return (
                    obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
                )
            return super().getattr(obj, attribute)

    sandbox = Sandbox(trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    sandbox.filters["tojson"] = to_json
    sandbox.filters[COUNTED] = jinja2.pass_eval_context(_counted)
    sandbox.globals |= {"raise_exception": raise_exception, "strftime_now": strftime_now}
    sandbox.globals["namespace"] = _namespace_class()
    return sandbox


COUNTED = "brimful_counted"
"""Filter of everything that a template loops over."""


def _size(value: Any) -> Any:
    if isinstance(value, (int, float)):
        return abs(value)
    return len(value) if hasattr(value, "__len__") else 0


def _count(context: Any, steps: Any) -> None:
    """Count steps of one rendering, whose context Jinja makes."""
    context.steps = getattr(context, "steps", 0) + steps
    if context.steps > _MAX_STEPS:
        raise BoundError(f"it loops or multiplies more than {_MAX_STEPS:,} times")


def _counted(context: Any, values: Any) -> Any:
    try:
        num_steps = len(values)
    except TypeError:  # of an iterator, such as a filter returns
        values = list(values)
        num_steps = len(values)
    _count(context, _STEPS_OF_START + num_steps)
    return values


def _bounded(tree: Any) -> Any:
    """Return a parsed template that counts the steps of its loops and macros, where they begin; the
    rest of it is as fast as before.
    """
    from jinja2 import nodes

    def counted(value: Any) -> nodes.Filter:
        return nodes.Filter(value, COUNTED, [], [], None, None)

    for node in tree.find_all((nodes.Const, nodes.For, nodes.Macro)):
        if isinstance(node, nodes.Const):
            value = node.value
            is_text = isinstance(value, str)
            if _HUGE_WIDTH.search(value) if is_text else _size(value) > _MAX_STEPS:
                raise BoundError(f"it may pad by {str(value)[:80]!r}")
            continue
        if isinstance(node, nodes.For):
            node.iter = counted(node.iter)
        # One that calls itself begins in its body.
        if getattr(node, "recursive", True):
            node.body.insert(0, nodes.ExprStmt(counted(nodes.Name(COUNTED, "load"))))
    return tree


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
                raise jinja2.exceptions.SecurityError(
                    f"a namespace of a template has no attribute {name!r}"
                )
            super().__setitem__(name, value)

    return SafeNamespace


_OPEN, _CLOSE = "\ue015", "\ue016"  # private-use characters that no template looks for
_MARK = re.compile(rf"{_OPEN}(\d+) (\d*|end){_CLOSE}")
_STEP, _SET, _END = "brimful_step", "brimful_set", "brimful_end"


class Traced(NamedTuple):
    """A text, and its runs that belong to each message, in order."""

    text: str
    runs: list[list[Span]]


def trace(source: str, variables: Mapping[str, Any], messages: Sequence[Message]) -> Traced:
    """Render a conversation and find the runs of its messages.

    Args:
        source: the template.
        variables: its variables other than the messages.
        messages: as they are given to the template.

    Raises:
        Exception: the template cannot be compiled, or it refuses the conversation; of any class.

    >>> trace("{% for m in messages %}<{{ m.content }}>{% endfor %}.", {}, [{"content": "a"}, {"content": "bc"}])
    Traced(text='<a><bc>.', runs=[[(0, 3)], [(3, 7)]])
    """
    messages = [dict(message) for message in messages]  # one object may stand for several turns
    marks = _Marks(messages)
    functions = {_STEP: marks.step, _SET: marks.name, _END: marks.end}
    marked_text: str = _marked_template(source).render(**variables, messages=messages, **functions)
    return _parse(marked_text, len(messages))


class _Marks:
    """The functions that write marks. A loop is open after one of its steps took up a message."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self._indices = {id(message): index for index, message in enumerate(messages)}
        contents = [id(message.get("content")) for message in messages]
        self._by_content = {
            key: index for index, key in enumerate(contents) if contents.count(key) == 1
        }
        self._open_loops: set[int] = set()
        self._has_message: dict[int, bool] = {}  # of the current step of each loop

    def _index(self, value: Any) -> int | None:
        """Return the index of a message, or of the message whose content a template put into a new
        one.
        """
        index = self._indices.get(id(value))
        if index is None and isinstance(value, dict) and value.get("content"):
            index = self._by_content.get(id(value["content"]))
        return index

    def step(self, loop: int, value: Any) -> str:
        """Mark a step of a loop over messages, or the end of the previous message in another open
        loop.
        """
        index = self._index(value)
        self._has_message[loop] = index is not None
        if index is None:
            return f"{_OPEN}{loop} {_CLOSE}" if loop in self._open_loops else ""
        return self._mark(loop, index)

    def name(self, loop: int, value: Any) -> str:
        """Mark the first message that gets a name in a step of another loop, such as a loop over
        indices.
        """
        index = self._index(value)
        if index is None or self._has_message[loop]:
            return ""
        self._has_message[loop] = True
        return self._mark(loop, index)

    def end(self, loop: int) -> str:
        """Mark the end of an open loop."""
        if loop not in self._open_loops:
            return ""
        self._open_loops.remove(loop)
        return f"{_OPEN}{loop} end{_CLOSE}"

    def _mark(self, loop: int, index: int) -> str:
        self._open_loops.add(loop)
        return f"{_OPEN}{loop} {index}{_CLOSE}"


def _parse(marked_text: str, num_messages: int) -> Traced:
    """Cut a text at its marks: piece, loop, message, piece, …, piece."""
    pieces = _MARK.split(marked_text)
    runs: list[list[Span]] = [[] for _ in range(num_messages)]
    messages: dict[int, int | None] = {}  # of the open loops, the innermost last
    position = 0
    for piece_index in range(0, len(pieces), 3):
        if piece_index:
            loop, value = int(pieces[piece_index - 2]), pieces[piece_index - 1]
            # A step left open by ``continue`` or ``break`` ends at the next mark of an enclosing
            # loop.
            if loop in messages:
                while messages.popitem()[0] != loop:
                    pass
            if value != "end":
                messages[loop] = int(value) if value else None
        end = position + len(pieces[piece_index])
        owner = next((index for index in reversed(messages.values()) if index is not None), None)
        if owner is not None and end > position:
            own_runs = runs[owner]
            # A loop inside the turn may have ended here.
            start = own_runs.pop()[0] if own_runs and own_runs[-1][1] == position else position
            own_runs.append((start, end))
        position = end
    return Traced("".join(pieces[::3]), runs)


@lru_cache(maxsize=8)
def _marked_template(source: str) -> Any:
    """Compile a template with calls of the functions that write marks."""
    from jinja2 import nodes
    from jinja2.visitor import NodeTransformer

    def call(function: str, loop: int, *values: nodes.Expr) -> nodes.Output:
        arguments = [nodes.Const(loop), *values]
        return nodes.Output([nodes.Call(nodes.Name(function, "load"), arguments, [], None, None)])

    def value_of(target: nodes.Node) -> nodes.Expr:
        return (
            nodes.Name(target.name, "load") if isinstance(target, nodes.Name) else nodes.Const(None)
        )

    class Marking(NodeTransformer):
        def __init__(self) -> None:
            self._num_loops = 0
            self._loops: list[int] = []  # around the node

        def visit_For(self, node: nodes.For) -> list[nodes.Node]:
            loop = self._num_loops
            self._num_loops += 1
            self._loops.append(loop)
            self.generic_visit(node)
            self._loops.pop()
            node.body.insert(0, call(_STEP, loop, value_of(node.target)))
            return [node, call(_END, loop)]

        def visit_Assign(self, node: nodes.Assign) -> list[nodes.Node]:
            return [node, *[call(_SET, loop, value_of(node.target)) for loop in self._loops[-1:]]]

    tree = Marking().visit(environment().parse(source))
    return environment().from_string(tree.set_environment(environment()))


Render: TypeAlias = Callable[[Sequence[Message], Any, bool], str]
"""Function of (messages, tools, add_generation_prompt) that gives the text of one chat template."""


Kept = TypeVar("Kept")

_MAX_SHAPES = 4096
"""Maximum number of shapes whose examination is kept; data sets have few, so more means that shapes
do not recur.
"""


def examined(results: dict[Any, Kept], shape: Any, examine: Callable[[], Kept]) -> Kept:
    """Return the result for a shape of conversations, from ``results`` if it is kept there."""
    if shape not in results:
        if len(results) >= _MAX_SHAPES:
            results.clear()
        results[shape] = examine()
    return results[shape]


def replace_texts(
    message: Message, content: str | None, call_fields: Iterable[Mapping[str, Any]] | None
) -> Message:
    """Return a message with other texts.

    Args:
        message: the original, which stays as it is.
        content: the new content; None keeps the old.
        call_fields: for each tool call, the new values of fields of its function, such as ``name``;
            None keeps the old.
    """
    copy = dict(message)
    if content is not None:
        copy["content"] = content
    if call_fields is not None and message.get("tool_calls"):
        copy["tool_calls"] = calls = []
        for call, fields in zip(message["tool_calls"], call_fields, strict=True):
            # OpenAI nests name and arguments under ``function``; some data sets have them in the
            # call itself.
            function = {**call.get("function", call), **fields}
            calls.append({**call, "function": function} if "function" in call else function)
    return copy


def excerpt_of(message: Message) -> str:
    """Return the beginning of a message's text, quoted, for an error."""
    content = message.get("content")
    if not isinstance(content, str) or not content.strip():
        return "tool calls only" if message.get("tool_calls") else "no text"
    content = content.strip()
    return repr(content if len(content) <= 40 else f"{content[:40]}…")
