"""A chat template, rendered by Jinja if that gives the same text as Transformers."""

import contextlib
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any

from brimful.base.optional import version_of
from brimful.encode.jinja_templates import BoundError, Render, Traced, compile_template, trace
from brimful.encode.verdicts import knows_transformers, load_verdict, save_verdict
from brimful.sources.sample import Message, PartlyPlainMessages

_REASONING_NAMES = ("reasoning_content", "thinking", "reasoning")
"""Names of an answer's reasoning; of several, Transformers takes the first."""

REASONING = frozenset(_REASONING_NAMES)

_SCALARS = (str, int, float, bool, type(None))

HARD_CONTENT = '\x1c\x85\u2003 <b>"é" {{ x }}</think>\n</think> 1e3 \\n\u200b\t\x1f \n'
"""Text with every kind of white space at its ends, and with everything that templates look for in
an answer.
"""

EXAMPLES: Sequence[tuple[Sequence[Message], Any]] = (
    ([{"role": "user", "content": "a"}], None),
    (
        [
            {"role": "system", "content": " s "},
            {"role": "user", "content": "a\n"},
            {"role": "assistant", "content": "b"},
        ],
        None,
    ),
    (
        [
            {"role": "user", "content": "q"},
            {"role": "assistant", "content": "<think>\nt\n</think>\n\nb", "reasoning_content": "t"},
            {"role": "user", "content": HARD_CONTENT},
            {"role": "assistant", "content": HARD_CONTENT},
        ],
        None,
    ),
    (
        [
            {"role": "user", "content": "q"},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [
                    {
                        "type": "function",
                        "function": {"name": "f", "arguments": {"x": [1, 2.5, None, "é<"]}},
                    }
                ],
            },
            {"role": "tool", "name": "f", "content": '{"y": true}'},
            {"role": "assistant", "content": "b"},
        ],
        [
            {
                "type": "function",
                "function": {"name": "f", "description": "é", "parameters": {"type": "object"}},
            }
        ],
    ),
)
"""Conversations on which Jinja, called here, is compared with Transformers."""


class ChatTemplate:
    """One template with its variables.

    Two engines give the same text: Transformers, whose text defines the template's meaning, and
    Jinja in a sandbox with the same settings, without what Transformers does around each call.
    Jinja is used once it has given the same text as Transformers on built-in conversations; that
    result is kept for later jobs.

    Args:
        source: Jinja source.
        variables: special tokens by name, and the caller's own variables.
        render: renders with Transformers.
        aliases_reasoning: Transformers gives reasoning under all of its names.
        jinja: use Jinja if it was found equal to Transformers; otherwise Transformers alone.
    """

    def __init__(
        self,
        source: str,
        variables: Mapping[str, Any],
        render: Render,
        *,
        aliases_reasoning: bool,
        jinja: bool,
    ) -> None:
        self.source, self._by_transformers = source, render
        self.variables = {**variables, "documents": None}
        self._aliases_reasoning = aliases_reasoning
        self._is_jinja_wanted = jinja

    def render(
        self, messages: Sequence[Message], tools: Any, add_generation_prompt: bool = False
    ) -> str:
        """Return the text of a conversation.

        Args:
            messages, tools: of the conversation.
            add_generation_prompt: append the beginning of an answer.

        Raises:
            Exception: the template refuses it; of any class.
        """
        render = self._by_transformers if self.needs_transformers else self._by_jinja
        return render(messages, tools, add_generation_prompt)

    def trace(self, messages: Sequence[Message], tools: Any) -> Traced:
        """Return the text of a conversation from Jinja, and which part belongs to which message.

        Raises:
            Exception: Jinja cannot compile the template, or it refuses the conversation; of any
                class.
        """
        variables = {**self.variables, "tools": tools or None, "add_generation_prompt": False}
        return trace(self.source, variables, self.prepared(messages))

    def load(self) -> None:
        """Compile the template for Jinja."""
        # A template that cannot be compiled is refused by name at the first conversation.
        with contextlib.suppress(Exception):
            compile_template(self.source)

    @property
    def engine(self) -> str:
        """Name of the library that renders."""
        return "Transformers" if self.needs_transformers else "Jinja"

    @property
    def needs_transformers(self) -> bool:
        """True if Transformers renders conversations."""
        return not self._is_jinja_wanted or not self._jinja_is_equal

    def _by_jinja(
        self, messages: Sequence[Message], tools: Any, add_generation_prompt: bool
    ) -> str:
        text: str = compile_template(self.source).render(
            **self.variables,
            messages=self.prepared(messages),
            tools=tools or None,
            add_generation_prompt=add_generation_prompt,
        )
        return text

    def prepared(self, messages: Sequence[Message]) -> Sequence[Message]:
        """Return messages as Transformers gives them to a template: no keys without values,
        reasoning under all names.
        """
        prepared = list(messages)
        for index in (
            messages.others if type(messages) is PartlyPlainMessages else range(len(prepared))
        ):
            message = prepared[index]
            if None not in message.values() and REASONING.isdisjoint(message):
                continue
            prepared[index] = present = {
                key: value for key, value in message.items() if value is not None
            }
            reasoning = next((present[name] for name in _REASONING_NAMES if name in present), None)
            if self._aliases_reasoning and reasoning is not None:
                prepared[index] = {"thinking": reasoning, **present, "reasoning_content": reasoning}
        return prepared

    @cached_property
    def _jinja_is_equal(self) -> bool:
        """True if Jinja gives Transformers' text on the built-in conversations; checked once for
        each template.
        """
        # This Transformers renders every template as Jinja does here, with variables that JSON can
        # hold.
        if knows_transformers() and all(
            type(value) in _SCALARS for value in self.variables.values()
        ):
            with contextlib.suppress(Exception):  # a tag that only Transformers has
                compile_template(self.source)
                return True
        versions = [version_of(name) for name in ("transformers", "jinja2")]
        variables = {
            key: repr(value) for key, value in self.variables.items() if key != "documents"
        }
        subject = ["template", self.source, variables, versions]
        result = load_verdict(subject)
        if result is None:
            result = all(
                _text_or_none(self._by_jinja, *conversation, prompt)
                == _text_or_none(self._by_transformers, *conversation, prompt)
                for conversation in EXAMPLES
                for prompt in (False, True)
            )
            save_verdict(subject, result)
        return bool(result)


def _text_or_none(
    render: Render, messages: Sequence[Message], tools: Any, add_generation_prompt: bool
) -> str | None:
    try:
        return render(messages, tools, add_generation_prompt)
    except BoundError:  # Transformers would not end
        raise
    except Exception:
        return None
