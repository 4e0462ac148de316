"""One training example of a source, in the forms that encoders take: a chat, a text, or tokens."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from operator import itemgetter
from typing import Any, TypeAlias

from brimful.base.wording import counted

Message: TypeAlias = dict[str, Any]
"""One turn in OpenAI's form: ``role``, ``content`` (text) and, if it calls tools,
``tool_calls``.
"""


def exchange(question: str, answer: str) -> list[Message]:
    """Return the turn of a user and the answer of the assistant."""
    return [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]


_ROLE_AND_TEXT = {2}, {dict}, {str}
_role_of, _content_of = itemgetter("role"), itemgetter("content")


class PlainMessages(list[Message]):
    """Messages that all have a role and a text, neither empty, and nothing else, as most do.

    What is known for all of them need not be checked for each.

    Attributes:
        roles: of the messages, in order.
        texts: their contents.

    >>> PlainMessages.of([{"role": "user", "content": "hi"}]).texts
    ['hi']
    """

    __slots__ = ("roles", "texts")

    def __init__(self, messages: list[Any], roles: tuple[str, ...], texts: list[str]) -> None:
        super().__init__(messages)
        self.roles, self.texts = roles, texts

    @classmethod
    def of(cls, messages: list[Any]) -> "PlainMessages | None":
        """Return the same messages if they are plain; else None."""
        # Built-in functions over all messages take a tenth of the time of a loop over them.
        sizes, types, text_types = _ROLE_AND_TEXT
        try:
            roles, texts = [*map(_role_of, messages)], [*map(_content_of, messages)]
        except (KeyError, TypeError):
            return None
        are_plain = (
            set(map(type, messages)) == types
            and set(map(len, messages)) == sizes
            and set(map(type, texts)) == set(map(type, roles)) == text_types
            and all(texts)
            and all(roles)
        )
        return cls(messages, tuple(roles), texts) if are_plain else None

    @classmethod
    def of_many(cls, conversations: Sequence[list[Any]]) -> "list[PlainMessages | None]":
        """Return what ``of`` returns for each conversation; no conversation may be empty.

        All messages are checked at once, which takes half the time if all are plain.

        >>> PlainMessages.of_many([[{"role": "user", "content": "hi"}], [{"role": "user", "content": None}]])
        [[{'role': 'user', 'content': 'hi'}], None]
        """
        together = cls.of(list(chain.from_iterable(conversations)))
        if together is None:
            return [*map(cls.of, conversations)]
        edges = pairwise(accumulate(map(len, conversations), initial=0))
        return [
            cls(conversation, together.roles[start:end], together.texts[start:end])
            for conversation, (start, end) in zip(conversations, edges, strict=True)
        ]

    @classmethod
    def of_texts(cls, roles: tuple[str, ...], texts: list[str]) -> "PlainMessages":
        """Return messages of roles and texts, none of them empty.

        >>> PlainMessages.of_texts(("user",), ["hi"])
        [{'role': 'user', 'content': 'hi'}]
        """
        messages = [
            {"role": role, "content": text} for role, text in zip(roles, texts, strict=True)
        ]
        return cls(messages, roles, texts)

    def first(self, count: int) -> "PlainMessages":
        """Return the first messages."""
        return PlainMessages(self[:count], self.roles[:count], self.texts[:count])


class PartlyPlainMessages(list[Message]):
    """Messages that mostly have only a role and a text, with the indices of the others.

    Only these few are searched for tool calls, reasoning, weights and the like.

    Attributes:
        roles: of the messages, in order.
        others: indices of the messages that have more than a role and a text, or no text.

    >>> call = {"role": "assistant", "content": "", "tool_calls": []}
    >>> PartlyPlainMessages.of([{"role": "user", "content": "hi"}, call]).others
    [1]
    """

    __slots__ = ("others", "roles")

    def __init__(self, messages: list[Any], roles: tuple[str, ...], others: list[int]) -> None:
        super().__init__(messages)
        self.roles, self.others = roles, others

    @classmethod
    def of(cls, messages: list[Any]) -> "PartlyPlainMessages | None":
        """Return the same messages; None if one is not an object with a role."""
        if set(map(type, messages)) != _ROLE_AND_TEXT[1]:
            return None
        roles = [message.get("role") for message in messages]
        if set(map(type, roles)) != _ROLE_AND_TEXT[2] or not all(roles):
            return None
        others = [
            index
            for index, message in enumerate(messages)
            if len(message) != 2
            or type(content := message.get("content")) is not str
            or not content
        ]
        return cls(messages, tuple(roles), others)

    def first(self, count: int) -> "PlainMessages | PartlyPlainMessages":
        """Return the first messages, which may all be plain."""
        messages, roles = self[:count], self.roles[:count]
        others = [index for index in self.others if index < count]
        if not others:
            return PlainMessages(messages, roles, [*map(_content_of, messages)])
        return PartlyPlainMessages(messages, roles, others)


def first_messages(messages: Sequence[Message], count: int) -> Sequence[Message]:
    """Return the first messages of a conversation, with what is known of them.

    >>> first_messages(PlainMessages.of_texts(("user", "assistant"), ["hi", "ho"]), 1).texts
    ['hi']
    """
    if isinstance(messages, (PlainMessages, PartlyPlainMessages)):
        return messages.first(count)
    return messages[:count]


def is_empty(message: Message) -> bool:
    """Return true for a message without content, tool calls and reasoning."""
    return not any(message.get(key) for key in ("content", "tool_calls", "reasoning_content"))


def weight(message: Message) -> Any:
    """Return the weight of a message in the loss: 0 or 1."""
    value = message.get("weight", message.get("loss_weight", 1))
    return 1 if value is None else value


def unusual_messages(messages: Sequence[Message]) -> Sequence[Message]:
    """Return the messages that may have more than a role and a text; all of them if that is
    unknown.

    >>> unusual_messages(PlainMessages.of([{"role": "user", "content": "hi"}]))
    ()
    """
    if type(messages) is PlainMessages:
        return ()
    return (
        [messages[index] for index in messages.others]
        if type(messages) is PartlyPlainMessages
        else messages
    )


@dataclass(frozen=True, slots=True)
class Completion:
    """The part of a conversation that is scored, and whose tokens are the targets: all that follows
    its prompt.

    Attributes:
        num_prompt: messages of the prompt, the first of the sample.
        other: another conversation with the same prompt. It decides at which token the completion
            begins, since the completions of both begin at the same one.
        needs_no_template: true if prompt and completion are two pieces of one text without turns.
        borrowed: the sample of another row, whose completion follows this prompt and has no
            targets; None for a completion of its own.
    """

    num_prompt: int
    other: Sequence[Message] | None = None
    needs_no_template: bool = False
    borrowed: "Sample | None" = None


@dataclass(slots=True)  # one is made for each row, and a frozen class takes four times as long
class Sample:
    """One training example, from a row of any format: exactly one of ``messages``, ``text`` and
    ``input_ids``.

    Never modified: ``dataclasses.replace`` makes a new one.

    Attributes:
        sample_id: index in the source, from 0.
        messages: the turns of a chat. The content of a turn with attachments is a list of parts,
            ``{"type": "text", "text": …}`` and ``{"type": "image"}`` (``video``, ``audio``),
            otherwise a text.
        text: a document.
        tools: JSON schemas of the tools that the chat may call, in the form that the template
            takes.
        input_ids: tokens of a row that was already tokenized.
        labels: its targets: the token at each target, else -100; None if every token is one.
        attachments: images, videos and audio, one for each such part, in their order.
        completion: the part that is scored, whose tokens are its targets; None for most samples.
        unread: columns of the row that hold a value and were not read, such as ``id``; keys of
            messages are written as ``messages[].name``.

    >>> Sample(0, messages=[{"role": "user", "content": "hi"}]).text is None
    True
    """

    sample_id: int
    messages: Sequence[Message] | None = None
    text: str | None = None
    tools: Sequence[dict[str, Any]] | None = None
    input_ids: Sequence[int] | None = None
    labels: Sequence[int] | None = None
    attachments: tuple[Any, ...] = ()
    completion: Completion | None = None
    unread: tuple[str, ...] = ()

    @property
    def kind(self) -> str:
        """The form of the sample: ``chat``, ``text`` or ``tokens``."""
        if self.messages is not None:
            return "chat"
        return "text" if self.text is not None else "tokens"

    def __repr__(self) -> str:
        if self.messages is None:
            return f"Sample({self.sample_id}, text of {counted(len(self.text or ''), 'character')})"
        return f"Sample({self.sample_id}, {counted(len(self.messages), 'message')})"
