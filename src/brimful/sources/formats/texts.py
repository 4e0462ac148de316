"""Formats of rows that are no lists of turns: texts, tokens, instructions, captions,
transcripts.
"""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np

from brimful.base.checks import MalformedRowError
from brimful.base.typing import IGNORE_INDEX, TARGET_MASKS
from brimful.errors import CollateError
from brimful.sources.formats.conversation import as_text, as_tools
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.sample import Message, PlainMessages, exchange
from brimful.sources.tokenized_row import TokenizedRow


class Text(RowFormat):
    """``{"text": …}`` or a bare string.

    >>> Text().convert({"text": "Once upon a time"})
    {'text': 'Once upon a time'}
    """

    name = "text"
    default_fields = {"text": "text"}
    required_fields = ("text",)
    has_turns = False
    synonyms = {"text": ("text", "content", "document", "body", "article")}

    def matches(self, row: Any) -> bool:
        return isinstance(row, str) or super().matches(row)

    def convert(self, row: Mapping[str, Any] | str) -> dict[str, Any]:
        text = row if isinstance(row, str) else self.text(row, "text")
        if not text:
            raise MalformedRowError(
                f"{self.fields['text']!r} is empty: a document needs at least one character"
            )
        return {"text": text}


_NAMES = ("input_ids", "labels", "attention_mask", *TARGET_MASKS, "position_ids", "seq_lengths")


class Tokens(RowFormat):
    """``{"input_ids": [ … ], "labels": [ … ]}``, as tokenizing scripts write them
    (``brimful.sources.tokenized_row``).

    Targets are the labels other than -100, or the tokens that a mask marks, or else all tokens.
    Padding that an ``attention_mask`` marks is cut off. A row that holds several samples is
    refused: packs are made of samples.

    >>> Tokens().convert({"input_ids": [5, 6, 7, 0], "labels": [-100, 6, 7, -100], "attention_mask": [1, 1, 1, 0]})
    {'input_ids': [5, 6, 7], 'labels': [-100, 6, 7]}
    """

    name = "tokens"
    default_fields = {name: name for name in _NAMES}
    required_fields = ("input_ids",)
    has_turns = False

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        self.get(row, "input_ids")
        columns = {
            name: value for name in self.fields if (value := self.optional(row, name)) is not None
        }
        try:
            tokens = TokenizedRow(columns, "the row").tokens()
        except CollateError as error:
            raise MalformedRowError(error.message) from error
        num_samples = len(tokens.cu_seqlens) - 1
        if num_samples > 1:
            raise MalformedRowError(
                f"the row is already a pack of {num_samples} samples: give one sample a row"
            )
        ids = tokens.input_ids.tolist()
        if min(ids) < 0:
            raise MalformedRowError(
                f"the row has {min(ids)} in {self.fields['input_ids']!r}, which is not a token id"
            )
        labels = np.where(tokens.loss_mask, tokens.input_ids, IGNORE_INDEX)
        return {"input_ids": ids, "labels": labels.tolist()}


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
        """Return the messages of the prompt or the completion; a text is one message of that
        role.
        """
        if isinstance(self.get(row, name), list):
            return self.messages(row, name)
        return [{"role": role, "content": self.text(row, name)}]


_ROLES = ("user", "assistant")
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
        return {"messages": exchange(self.text(row, "question"), self.text(row, "answer"))}

    def conversations(self, rows: Sequence[dict[str, Any]]) -> Sequence[PlainMessages | None]:
        question, answer = self.fields["question"], self.fields["answer"]
        pairs: list[list[Any]] = [[row.get(question), row.get(answer)] for row in rows]
        if set(map(type, chain.from_iterable(pairs))) != _TEXT:
            return [None] * len(rows)
        return [PlainMessages.of_texts(_ROLES, pair) if all(pair) else None for pair in pairs]


class Alpaca(RowFormat):
    """``{"instruction": …, "input": …, "output": …}``, with optional ``system`` and ``history``
    pairs.

    A non-empty input follows the instruction on a new line, as in LLaMA-Factory.

    >>> Alpaca().convert({"instruction": "Add", "input": "1 1", "output": "2"})["messages"][0]["content"]
    'Add\\n1 1'
    """

    name = "alpaca"
    default_fields = {
        field: field for field in ("instruction", "input", "output", "system", "history")
    }
    required_fields = ("instruction", "output")

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        question, answer = self.text(row, "instruction"), self.text(row, "output")
        extra = self.optional(row, "input")
        if extra:
            question = f"{question}\n{as_text(extra, self.fields['input'])}"
        # The order of the turns: system, history, the question with its input, the answer.
        messages = self.system_message(row)
        history = self.optional(row, "history") or []
        if not isinstance(history, list) or not all(
            isinstance(pair, list) and len(pair) == 2 for pair in history
        ):
            raise MalformedRowError(
                f"{self.fields['history']!r} must hold [question, answer] pairs"
            )
        for pair in history:
            texts = (
                as_text(pair[0], "a question of the history"),
                as_text(pair[1], "an answer of the history"),
            )
            messages += exchange(*texts)
        messages += exchange(question, answer)
        return {"messages": messages}
