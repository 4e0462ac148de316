"""One question, one answer."""

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

from brimful.sources.formats.row_format import RowFormat
from brimful.sources.sample import PlainMessages

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
        return {"messages": PlainMessages.of_texts(_ROLES, self.texts(row, "question", "answer"))}

    def conversations(self, rows: Sequence[dict[str, Any]]) -> Sequence[PlainMessages | None]:
        question, answer = self.fields["question"], self.fields["answer"]
        pairs: list[list[Any]] = [[row.get(question), row.get(answer)] for row in rows]
        if set(map(type, chain.from_iterable(pairs))) != _TEXT:
            return [None] * len(rows)
        return [PlainMessages.filled(_ROLES, pair) if all(pair) else None for pair in pairs]
