"""Rows of KTO: a prompt, an answer, and whether the answer is desirable."""

from collections.abc import Mapping
from typing import Any

from brimful.sources.formats.alpaca import Alpaca
from brimful.sources.formats.messages import Messages
from brimful.sources.formats.prompt_completion import PromptCompletion
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.formats.sharegpt import ShareGPT
from brimful.sources.formats.turns import preview
from brimful.sources.sample import Completion, MalformedRowError, Message


class KtoFormat(RowFormat):
    """Conversion of a row into its conversation; the turns after the prompt are scored."""

    has_sides = True
    is_unpaired = True
    is_detected = False

    def is_desirable(self, row: Mapping[str, Any]) -> bool:
        """Return the label of a row.

        Raises:
            MalformedRowError: it is neither true nor false.
        """
        label = self.get(row, "label")
        if not isinstance(label, bool):
            raise MalformedRowError(f"{self.fields['label']!r} must be true or false and is {preview(label)}")
        return label

    def _scored(self, content: dict[str, Any], num_prompt: int | None = None) -> dict[str, Any]:
        """Add the completion to the fields of a sample: the last turn, unless ``num_prompt`` is given."""
        messages: list[Message] = content["messages"]
        if messages[-1].get("role") != "assistant":
            raise MalformedRowError("its last turn is not from the assistant: it has no answer for the label")
        if len(messages) < 2:
            raise MalformedRowError("it has only one turn: no prompt comes before the answer")
        return {**content, "completion": Completion(len(messages) - 1 if num_prompt is None else num_prompt)}


class Kto(KtoFormat):
    """``{"prompt": …, "completion": …, "label": true}`` of TRL: texts or lists of turns.

    >>> row = {"prompt": "1+1?", "completion": "2", "label": True}
    >>> Kto().convert(row)["completion"].num_prompt, Kto().is_desirable(row)
    (1, True)
    """

    name = "kto"
    default_fields = {**PromptCompletion.default_fields, "label": "label"}
    required_fields = ("prompt", "completion", "label")

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        content = PromptCompletion(_without_label(self.fields)).convert(row)
        prompt = self.get(row, "prompt")
        return self._scored(content, len(prompt) if isinstance(prompt, list) else 1)


class MessagesKto(KtoFormat):
    """``{"messages": […], "label": true}`` of LLaMA-Factory: the last turn is the answer.

    >>> turns = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    >>> MessagesKto().convert({"messages": turns, "label": False})["completion"].num_prompt
    1
    """

    name = "messages_kto"
    default_fields = {**Messages.default_fields, "label": "label"}
    required_fields = ("messages", "label")

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return self._scored(Messages(_without_label(self.fields)).convert(row))


class ShareGPTKto(KtoFormat):
    """``{"conversations": […], "kto_tag": true}`` of LLaMA-Factory.

    >>> turns = [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]
    >>> ShareGPTKto().is_desirable({"conversations": turns, "kto_tag": False})
    False
    """

    name = "sharegpt_kto"
    default_fields = {**ShareGPT.default_fields, "label": "kto_tag"}
    required_fields = ("conversations", "label")

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return self._scored(ShareGPT(_without_label(self.fields)).convert(row))


class AlpacaKto(KtoFormat):
    """``{"instruction": …, "input": …, "output": …, "kto_tag": true}`` of LLaMA-Factory.

    >>> AlpacaKto().convert({"instruction": "Add", "output": "2", "kto_tag": True})["completion"].num_prompt
    1
    """

    name = "alpaca_kto"
    default_fields = {**Alpaca.default_fields, "label": "kto_tag"}
    required_fields = ("instruction", "output", "label")

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return self._scored(Alpaca(_without_label(self.fields)).convert(row))


def _without_label(fields: Mapping[str, str]) -> dict[str, str]:
    return {name: key for name, key in fields.items() if name != "label"}
