"""Stanford Alpaca's instruction format."""

from collections.abc import Mapping
from typing import Any

from brimful.sources.formats.conversation import as_text
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.sample import MalformedRowError, exchange


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
