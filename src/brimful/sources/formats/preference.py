"""Preferences: a prompt, the answer that was chosen, and the one that was rejected."""

import abc
from collections.abc import Mapping, Sequence
from typing import Any

from brimful.sources.formats.alpaca import Alpaca
from brimful.sources.formats.row_format import RowFormat
from brimful.sources.formats.sharegpt import ShareGPT, as_sharegpt_message
from brimful.sources.formats.turns import as_text, as_tools, preview
from brimful.sources.sample import Completion, MalformedRowError, Message
from brimful.sources.sides import SIDES


class PreferenceFormat(RowFormat):
    """Conversion of a row into two samples, chosen and rejected, that share their prompt."""

    has_sides = True

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return self.convert_side(row, 0)

    def convert_side(self, row: Mapping[str, Any], side: int) -> dict[str, Any]:
        prompt, answers, is_text = self._parts(row)
        rival = [*prompt, *answers[1 - side]]
        completion = Completion(len(prompt), rival=rival, needs_no_template=is_text)
        return {"messages": [*prompt, *answers[side]], "completion": completion, **self._tools(row)}

    @abc.abstractmethod
    def _parts(self, row: Mapping[str, Any]) -> tuple[list[Message], tuple[list[Message], list[Message]], bool]:
        """Return the prompt, the chosen and the rejected answer, and true for texts to encode without a template."""

    def _tools(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return {"tools": as_tools(self.optional(row, "tools"))} if "tools" in self.fields else {}

    def _answer(self, row: Mapping[str, Any], side: str) -> list[Message]:
        """Return the chosen or the rejected answer: a text, a turn, or a list of turns."""
        value, key = self.get(row, side), self.fields[side]
        if isinstance(value, str):
            return [{"role": "assistant", "content": value}]
        if isinstance(value, Mapping):
            return [as_sharegpt_message(value, key)]
        return self.messages(row, side, as_sharegpt_message)


class Preference(PreferenceFormat):
    """``{"prompt": …, "chosen": …, "rejected": …}`` of TRL: texts, or lists of turns.

    Without a prompt, the common beginning of chosen and rejected is the prompt, as in TRL: the same turns, or the same
    characters. Such texts have no turns, so they are encoded without a template (``CompletionEncoder``).

    >>> row = {"prompt": "1+1?", "chosen": "2", "rejected": "3"}
    >>> [Preference().convert_side(row, side)["messages"][1]["content"] for side in (0, 1)]
    ['2', '3']
    """

    name = "preference"
    default_fields = {"prompt": "prompt", "chosen": "chosen", "rejected": "rejected", "tools": "tools"}
    required_fields = SIDES

    def _parts(self, row: Mapping[str, Any]) -> tuple[list[Message], tuple[list[Message], list[Message]], bool]:
        values = [self.get(row, side) for side in SIDES]
        are_texts = [isinstance(value, str) for value in values]
        if are_texts[0] != are_texts[1]:
            raise MalformedRowError(
                f"{self.fields['chosen']!r} is {preview(values[0])} and {self.fields['rejected']!r} is "
                f"{preview(values[1])}: give two texts or two lists of turns"
            )
        chosen, rejected = self._answer(row, "chosen"), self._answer(row, "rejected")
        prompt = self.optional(row, "prompt")
        if prompt is None:
            return _common_text(*values) if are_texts[0] else _common_turns(chosen, rejected)
        if not isinstance(prompt, str):
            return self.messages(row, "prompt"), (chosen, rejected), False
        question: Message = {"role": "user", "content": prompt}
        # Some data sets give the question as a text, and again as the first turn of both conversations.
        if not are_texts[0]:
            if chosen[0] != question or rejected[0] != question:
                raise MalformedRowError(
                    f"{self.fields['prompt']!r} is a text, and chosen and rejected are turns that do not begin with it: write the "
                    f"prompt as turns, or leave it out"
                )
            return _common_turns(chosen, rejected)
        return [question], (chosen, rejected), False


class ShareGPTPreference(PreferenceFormat):
    """``{"conversations": […], "chosen": {"from": "gpt", …}, "rejected": {…}}`` of LLaMA-Factory.

    >>> turns = [{"from": "human", "value": "1+1?"}]
    >>> row = {"conversations": turns, "chosen": {"from": "gpt", "value": "2"}, "rejected": {"from": "gpt", "value": "3"}}
    >>> ShareGPTPreference().convert_side(row, 1)["messages"][1]
    {'role': 'assistant', 'content': '3'}
    """

    name = "sharegpt_preference"
    default_fields = {**ShareGPT.default_fields, "chosen": "chosen", "rejected": "rejected"}
    required_fields = ("conversations", *SIDES)

    def _parts(self, row: Mapping[str, Any]) -> tuple[list[Message], tuple[list[Message], list[Message]], bool]:
        prompt = self.system_message(row) + self.messages(row, "conversations", as_sharegpt_message)
        return prompt, (self._answer(row, "chosen"), self._answer(row, "rejected")), False


class AlpacaPreference(PreferenceFormat):
    """``{"instruction": …, "input": …, "chosen": …, "rejected": …}`` of LLaMA-Factory.

    >>> row = {"instruction": "Add", "input": "1 1", "chosen": "2", "rejected": "3"}
    >>> [turn["content"] for turn in AlpacaPreference().convert_side(row, 0)["messages"]]
    ['Add\\n1 1', '2']
    """

    name = "alpaca_preference"
    default_fields = {
        **{name: key for name, key in Alpaca.default_fields.items() if name != "output"},
        "chosen": "chosen",
        "rejected": "rejected",
    }
    required_fields = ("instruction", *SIDES)

    def _parts(self, row: Mapping[str, Any]) -> tuple[list[Message], tuple[list[Message], list[Message]], bool]:
        texts = [as_text(self.get(row, side), self.fields[side]) for side in SIDES]
        fields = {name: key for name, key in self.fields.items() if name in Alpaca.default_fields}
        prompt: list[Message] = Alpaca(fields).convert({**row, "output": ""})["messages"][:-1]
        chosen, rejected = ([{"role": "assistant", "content": text}] for text in texts)
        return prompt, (chosen, rejected), False


def _common_turns(
    chosen: list[Message], rejected: list[Message]
) -> tuple[list[Message], tuple[list[Message], list[Message]], bool]:
    """Split off the turns that chosen and rejected begin with; the last turn of either is never one of them."""
    num_common = _length_of_prefix(chosen, rejected)
    if num_common == 0:
        raise MalformedRowError("it has no prompt, and chosen and rejected share no turn: give the prompt as turns")
    return chosen[:num_common], (chosen[num_common:], rejected[num_common:]), False


def _common_text(chosen: str, rejected: str) -> tuple[list[Message], tuple[list[Message], list[Message]], bool]:
    """Split off the characters that chosen and rejected begin with; a space at their end belongs to the answers."""
    num_common = _length_of_prefix(chosen, rejected)
    if num_common and chosen[num_common] != rejected[num_common] and chosen[num_common - 1] == " ":
        num_common -= 1
    if num_common == 0:
        raise MalformedRowError("it has no prompt, and chosen and rejected have no common beginning: give the prompt")
    prompt: Message = {"role": "user", "content": chosen[:num_common]}
    first, second = ([{"role": "assistant", "content": text[num_common:]}] for text in (chosen, rejected))
    return [prompt], (first, second), True


def _length_of_prefix(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the common prefix, below that of the shorter sequence, as in TRL's ``extract_prompt``."""
    limit = min(len(one), len(other)) - 1
    return next((index for index in range(limit) if one[index] != other[index]), max(limit, 0))
