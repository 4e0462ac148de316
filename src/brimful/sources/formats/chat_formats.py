"""Formats of chats: messages, ShareGPT, Alpaca, question and answer, prompt and completion, transcript."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from brimful.media import MediaKind
from brimful.sources.formats.conversation import as_message, as_text, as_tools, from_json, key_of_turns, preview
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.media_places import MEDIA_COLUMNS
from brimful.sources.sample import MalformedRowError, Message, PlainMessages, exchange


class Messages(RowFormat):
    """``{"messages": [{"role": "user", "content": …}, …], "tools": [ … ]}``.

    >>> Messages().convert({"messages": [{"role": "user", "content": "hi"}]})["messages"]
    [{'role': 'user', 'content': 'hi'}]
    """

    name = "messages"
    default_fields = {"messages": "messages", "tools": "tools"}
    required_fields = ("messages",)
    has_conversations = True

    @classmethod
    def likely_fields(cls, row: Mapping[str, Any]) -> Mapping[str, str] | None:
        key = key_of_turns(row, {"role", "content"})
        return None if key is None else {"messages": key}

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"messages": self.messages(row, "messages"), "tools": as_tools(self.optional(row, "tools"))}

    def conversations(self, rows: Sequence[dict[str, Any]]) -> Sequence[PlainMessages | None]:
        messages, tools = self.fields["messages"], self.fields["tools"]
        conversations = [
            turns if type(turns := row.get(messages)) is list and turns and row.get(tools) is None else None
            for row in rows
        ]
        turns_of_rows = [turns for turns in conversations if turns is not None]
        if len(turns_of_rows) == len(rows):
            return PlainMessages.of_many(turns_of_rows)
        return [None if turns is None else PlainMessages.of(turns) for turns in conversations]


_SHAREGPT_ROLES = {
    **dict.fromkeys(("human", "user"), "user"),
    **dict.fromkeys(("gpt", "assistant", "bot", "chatgpt"), "assistant"),
    "system": "system",
    **dict.fromkeys(("observation", "tool", "function_response"), "tool"),
}


class ShareGPT(RowFormat):
    """``{"conversations": [{"from": "human", "value": …}, {"from": "gpt", "value": …}], "system": …}``.

    Turns with ``role`` and ``content`` are understood too: many data sets have such turns under this key.

    >>> row = {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]}
    >>> [turn["role"] for turn in ShareGPT().convert(row)["messages"]]
    ['user', 'assistant']
    """

    name = "sharegpt"
    default_fields = {"conversations": "conversations", "system": "system", "tools": "tools"}
    required_fields = ("conversations",)

    @classmethod
    def likely_fields(cls, row: Mapping[str, Any]) -> Mapping[str, str] | None:
        key = key_of_turns(row, {"from", "value"})
        return None if key is None else {"conversations": key}

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        messages = self.messages(row, "conversations", as_sharegpt_message)
        return {"messages": self.system_message(row) + messages, "tools": as_tools(self.optional(row, "tools"))}


def as_sharegpt_message(turn: Any, name: str) -> Message:
    """Return one turn in OpenAI's form; keys other than ``from`` and ``value`` stay."""
    if isinstance(turn, Mapping) and "role" in turn and "from" not in turn:
        return as_message(turn, name)
    if not isinstance(turn, Mapping) or "from" not in turn or "value" not in turn:
        raise MalformedRowError(f"{name} must be an object with 'from' and 'value'")
    speaker, text = turn["from"], as_text(turn["value"], f"the value of {name}")
    if speaker == "function_call":
        message: Message = {"role": "assistant", "content": "", "tool_calls": _calls(text, name)}
    elif isinstance(speaker, str) and speaker in _SHAREGPT_ROLES:
        message = {"role": _SHAREGPT_ROLES[speaker], "content": text}
    else:
        value = repr(speaker) if isinstance(speaker, str) else preview(speaker)
        raise MalformedRowError(f"{name} is from {value}: use one of {', '.join(_SHAREGPT_ROLES)}, function_call")
    extra = {key: value for key, value in turn.items() if key not in ("from", "value", *message)}
    return {**extra, **message}


def _calls(text: str, name: str) -> list[dict[str, Any]]:
    """Return the tool calls in the JSON text of a ``function_call`` turn: one, or a list."""
    value = from_json(text, f"the function_call in {name}")
    calls = value if isinstance(value, list) else [value]
    for call in calls:
        if not isinstance(call, dict) or not isinstance(call.get("name"), str):
            raise MalformedRowError(f"{name} is a function_call that names no function")
    return [{"type": "function", "function": call} for call in calls]


class Alpaca(RowFormat):
    """``{"instruction": …, "input": …, "output": …}``, with optional ``system`` and ``history`` pairs.

    A non-empty input follows the instruction on a new line, as in LLaMA-Factory.

    >>> Alpaca().convert({"instruction": "Add", "input": "1 1", "output": "2"})["messages"][0]["content"]
    'Add\\n1 1'
    """

    name = "alpaca"
    default_fields = {field: field for field in ("instruction", "input", "output", "system", "history")}
    required_fields = ("instruction", "output")

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        question, answer = self.text(row, "instruction"), self.text(row, "output")
        extra = self.optional(row, "input")
        if extra:
            question = f"{question}\n{as_text(extra, self.fields['input'])}"
        # The order of the turns: system, history, the question with its input, the answer.
        messages = self.system_message(row)
        history = self.optional(row, "history") or []
        if not isinstance(history, list) or not all(isinstance(pair, list) and len(pair) == 2 for pair in history):
            raise MalformedRowError(f"{self.fields['history']!r} must hold [question, answer] pairs")
        for pair in history:
            texts = as_text(pair[0], "a question of the history"), as_text(pair[1], "an answer of the history")
            messages += exchange(*texts)
        messages += exchange(question, answer)
        return {"messages": messages}


_ANSWER_ROLES = ("user", "assistant")
_TEXT = {str}


class QuestionAnswer(RowFormat):
    """``{"question": …, "answer": …}``.

    >>> QuestionAnswer().convert({"question": "1+1?", "answer": "2"})["messages"][1]["content"]
    '2'
    """

    name = "question_answer"
    default_fields = {"question": "question", "answer": "answer"}
    required_fields = ("question", "answer")
    has_conversations = True
    synonyms = {
        "question": ("question", "problem", "query", "instruction", "prompt", "input", "user"),
        "answer": ("answer", "solution", "response", "output", "completion", "target", "assistant"),
    }

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"messages": PlainMessages.of_texts(_ANSWER_ROLES, self.texts(row, "question", "answer"))}

    def conversations(self, rows: Sequence[dict[str, Any]]) -> Sequence[PlainMessages | None]:
        question, answer = self.fields["question"], self.fields["answer"]
        pairs: list[list[Any]] = [[row.get(question), row.get(answer)] for row in rows]
        if set(map(type, chain.from_iterable(pairs))) != _TEXT:
            return [None] * len(rows)
        return [PlainMessages.filled(_ANSWER_ROLES, pair) if all(pair) else None for pair in pairs]


class PromptCompletion(RowFormat):
    """``{"prompt": …, "completion": …}``; either may be a text or a list of turns.

    >>> [m["role"] for m in PromptCompletion().convert({"prompt": "1+1?", "completion": "2"})["messages"]]
    ['user', 'assistant']
    """

    name = "prompt_completion"
    default_fields = {"prompt": "prompt", "completion": "completion", "tools": "tools"}
    required_fields = ("prompt", "completion")

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        messages = self._side(row, "prompt", "user") + self._side(row, "completion", "assistant")
        return {"messages": messages, "tools": as_tools(self.optional(row, "tools"))}

    def _side(self, row: Mapping[str, Any], name: str, role: str) -> list[Message]:
        """Return the messages of the prompt or the completion; a text is one message of that role."""
        if isinstance(self.get(row, name), list):
            return self.messages(row, name)
        return [{"role": role, "content": self.text(row, name)}]


_NAMES = ("transcript", "transcription", "sentence", "text")


class Transcript(RowFormat):
    """``{"audio": …, "transcript": …}``; the words may also be under ``transcription``, ``sentence`` or ``text``.

    The user asks for the words, the transcript is the answer.

    >>> Transcript().convert({"audio": "a.flac", "text": "Hello."})["messages"][1]["content"]
    'Hello.'
    """

    name = "transcript"
    default_fields = {name: name for name in _NAMES}
    required_fields = ("transcript",)
    default_prompt = "Write down what is said."
    puts_media_first = True

    def matches(self, row: Any) -> bool:
        if not isinstance(row, Mapping) or not any(self.fields[name] in row for name in _NAMES):
            return False
        return any(MEDIA_COLUMNS.get(column) is MediaKind.AUDIO and value for column, value in row.items())

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        names = [name for name in _NAMES if self.optional(row, name)]
        if not names:
            key = next((self.fields[name] for name in _NAMES if self.fields[name] in row), self.fields["transcript"])
            raise MalformedRowError(f"{key!r} is empty" if key in row else f"field {key!r} is missing")
        if len(names) > 1:
            keys = ", ".join(repr(self.fields[name]) for name in names)
            raise MalformedRowError(f"it has several transcripts ({keys}): keep one of them")
        answer = self.text(row, names[0])
        return {"messages": exchange(self.prompt or self.default_prompt, answer)}
