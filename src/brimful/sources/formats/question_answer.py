"""One question, one answer."""

from collections.abc import Mapping
from typing import Any

from brimful.sources.formats.row_format import RowFormat
from brimful.sources.sample import PlainMessages

_ROLES = ("user", "assistant")


class QuestionAnswer(RowFormat):
    """``{"question": …, "answer": …}``.

    >>> QuestionAnswer().convert({"question": "1+1?", "answer": "2"})["messages"][1]["content"]
    '2'
    """

    name = "question_answer"
    default_fields = {"question": "question", "answer": "answer"}
    required_fields = ("question", "answer")

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"messages": PlainMessages.of_texts(_ROLES, self.texts(row, "question", "answer"))}
