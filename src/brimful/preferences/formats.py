"""Formats of preferences: a prompt with a chosen and a rejected answer, or an answer with a label
(KTO).
"""

import abc
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, NamedTuple, TypeAlias

from brimful.base.checks import MalformedRowError
from brimful.base.fingerprint import fingerprint_of
from brimful.base.wording import setting
from brimful.sources.answers import AnswerOfRow
from brimful.sources.formats.conversation import as_text, as_tools, preview
from brimful.sources.formats.messages import Messages, ShareGPT, as_sharegpt_message
from brimful.sources.formats.row_format import RowFormat, register
from brimful.sources.formats.texts import Alpaca, PromptCompletion
from brimful.sources.rows import Block, RowView
from brimful.sources.sample import Completion, Message, Sample

ANSWERS = ("chosen", "rejected")
"""Answers of a preference: sample ``2·row`` is chosen, sample ``2·row + 1`` rejected."""

_Answers: TypeAlias = tuple[list[Message], tuple[list[Message], list[Message]], bool]
"""Prompt, chosen and rejected answer, and true for texts to encode without a template."""

ROTATED_ROWS = 8
"""Number of rows that rotate their answers among themselves: TRL's default
``per_device_train_batch_size``.
"""


class PreferenceRows(RowView):
    """Rows of preferences, each of them twice.

    ::

        row        0                    1
        sample     0 chosen  1 rejected  2 chosen  3 rejected

    >>> from brimful.sources.memory import MemoryRows
    >>> rows = PreferenceRows(MemoryRows([{"chosen": "b", "rejected": "c"}]))
    >>> len(rows), rows.get(1).answer, rows.where(1)
    (2, 1, 'memory[0], rejected')
    """

    name = "sides"

    def parts(self, start: int, stop: int) -> Iterator[Sequence[Any]]:
        for row in self._rows.read(start, stop):
            yield (
                [row] * 2
                if isinstance(row, MalformedRowError)
                else [AnswerOfRow(row, 0), AnswerOfRow(row, 1)]
            )

    def where(self, index: int) -> str:
        return f"{super().where(index)}, {ANSWERS[index % 2]}"


class RowAndOther(NamedTuple):
    """A row of KTO, the row whose answer is its KL completion, and which of its two samples is
    meant.
    """

    row: Any
    other: Any
    slot: int


class KtoRows(RowView):
    """Rows of KTO, each of them twice, paired with the row before it; the first of eight rows is
    paired with the last.

    ::

        row      0   1   2  …  7   8   9
        other    7   0   1  …  6   9   8       the last rows of a file rotate among themselves

    >>> from brimful.sources.memory import MemoryRows
    >>> rows = KtoRows(MemoryRows(["a", "b", "c"]))
    >>> [(pair.row, pair.other, pair.slot) for pair in rows.read(0, 4)]
    [('a', 'c', 0), ('a', 'c', 1), ('b', 'a', 0), ('b', 'a', 1)]
    """

    name = "mismatches"
    rows_together = ROTATED_ROWS

    def parts(self, start: int, stop: int) -> Iterator[Sequence[Any]]:
        # Whole rotations are read, so that the first row also has its partner.
        for first in range(start - start % ROTATED_ROWS, stop, ROTATED_ROWS):
            rows = list(self._rows.read(first, min(first + ROTATED_ROWS, len(self._rows))))
            for position in range(max(start - first, 0), min(stop - first, len(rows))):
                row, other = rows[position], rows[position - 1]
                is_bad = isinstance(row, MalformedRowError)
                yield [row if is_bad else RowAndOther(row, other, slot) for slot in (0, 1)]

    @property
    def blocks(self) -> Sequence[Block]:
        blocks, result = self._rows.blocks, []
        starts = [block.start for block in blocks]
        for block in blocks:
            # A block depends on all rows of the rotations that it touches.
            first = block.start - block.start % ROTATED_ROWS
            end = min(-(-block.stop // ROTATED_ROWS) * ROTATED_ROWS, len(self._rows))
            indices = range(bisect_right(starts, first) - 1, bisect_left(starts, end))
            touched = [
                [blocks[index].fingerprint, blocks[index].start - block.start] for index in indices
            ]
            identity = [touched, first - block.start, end - block.start, self.name]
            result.append(
                replace(self._block_of_samples(block), fingerprint=fingerprint_of(identity))
            )
        return result


_LABELS = ("label", "kto_tag")


class PreferenceFormat(RowFormat):
    """Conversion of a row into two samples, chosen and rejected, that share their prompt."""

    view = PreferenceRows
    takes_attachments = False
    refused_columns = ("chosen", "rejected", "chosen_messages", "rejected_messages")

    refusal = (
        "is half of a preference, and these rows are read as single samples: name the format "
        f"of preferences ({setting('format', 'preference')}) and its fields, make rows of the "
        "answers you want"
    )

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        return self.convert_answer(row, 0)

    def convert_answer(self, row: Mapping[str, Any], answer: int) -> dict[str, Any]:
        """Return the fields of the chosen (0) or rejected (1) ``Sample``."""
        prompt, answers, is_text = self._answers(row)
        other = [*prompt, *answers[1 - answer]]
        completion = Completion(len(prompt), other=other, needs_no_template=is_text)
        content = {"messages": [*prompt, *answers[answer]], "completion": completion}
        if "tools" in self.fields:
            content["tools"] = as_tools(self.optional(row, "tools"))
        return content

    def sample_of_part(self, answer_of_row: AnswerOfRow, read: Callable[..., Sample]) -> Sample:
        return read(answer_of_row.row, partial(self.convert_answer, answer=answer_of_row.answer))

    @abc.abstractmethod
    def _answers(self, row: Mapping[str, Any]) -> _Answers:
        """Return the parts of a row."""

    def _answer(self, row: Mapping[str, Any], name: str) -> list[Message]:
        """Return the chosen or the rejected answer: a text, a turn, or a list of turns."""
        value, key = self.get(row, name), self.fields[name]
        if isinstance(value, str):
            return [{"role": "assistant", "content": value}]
        if isinstance(value, Mapping):
            return [as_sharegpt_message(value, key)]
        return self.messages(row, name, as_sharegpt_message)


class Preference(PreferenceFormat):
    """``{"prompt": …, "chosen": …, "rejected": …}`` of TRL: texts, or lists of turns.

    Without a prompt, the common beginning of chosen and rejected is the prompt, as in TRL: the same
    turns, or the same characters. Such texts have no turns, so they are encoded without a template
    (``CompletionEncoder``).

    >>> row = {"prompt": "1+1?", "chosen": "2", "rejected": "3"}
    >>> [Preference().convert_answer(row, answer)["messages"][1]["content"] for answer in (0, 1)]
    ['2', '3']
    """

    name = "preference"
    default_fields = {
        "prompt": "prompt",
        "chosen": "chosen",
        "rejected": "rejected",
        "tools": "tools",
    }
    required_fields = ANSWERS

    @classmethod
    def likely_fields(cls, row: Mapping[str, Any]) -> Mapping[str, str] | None:
        keys = {
            answer: next((str(key) for key in row if answer in str(key)), "") for answer in ANSWERS
        }
        return keys if all(keys.values()) else None

    def _answers(self, row: Mapping[str, Any]) -> _Answers:
        values = [self.get(row, name) for name in ANSWERS]
        are_texts = [isinstance(value, str) for value in values]
        if are_texts[0] != are_texts[1]:
            raise MalformedRowError(
                f"{self.fields['chosen']!r} is {preview(values[0])} and "
                f"{self.fields['rejected']!r} is {preview(values[1])}: give two texts or two lists "
                "of turns"
            )
        chosen, rejected = self._answer(row, "chosen"), self._answer(row, "rejected")
        prompt = self.optional(row, "prompt")
        if prompt is None:
            return _common_text(*values) if are_texts[0] else _common_turns(chosen, rejected)
        if not isinstance(prompt, str):
            return self.messages(row, "prompt"), (chosen, rejected), False
        question: Message = {"role": "user", "content": prompt}
        # Some data sets give the question as a text, and again as the first turn of both
        # conversations.
        if not are_texts[0]:
            if chosen[0] != question or rejected[0] != question:
                raise MalformedRowError(
                    f"{self.fields['prompt']!r} is a text, and chosen and rejected are turns that "
                    "do not begin with it: write the prompt as turns, or leave it out"
                )
            return _common_turns(chosen, rejected)
        return [question], (chosen, rejected), False


class ShareGPTPreference(PreferenceFormat):
    """``{"conversations": […], "chosen": {"from": "gpt", …}, "rejected": {…}}`` of LLaMA-Factory.

    >>> turns = [{"from": "human", "value": "1+1?"}]
    >>> row = {"conversations": turns, "chosen": {"from": "gpt", "value": "2"}, "rejected": {"from": "gpt", "value": "3"}}
    >>> ShareGPTPreference().convert_answer(row, 1)["messages"][1]
    {'role': 'assistant', 'content': '3'}
    """

    name = "sharegpt_preference"
    default_fields = {**ShareGPT.default_fields, "chosen": "chosen", "rejected": "rejected"}
    required_fields = ("conversations", *ANSWERS)

    def _answers(self, row: Mapping[str, Any]) -> _Answers:
        prompt = self.system_message(row) + self.messages(row, "conversations", as_sharegpt_message)
        return prompt, (self._answer(row, "chosen"), self._answer(row, "rejected")), False


class AlpacaPreference(PreferenceFormat):
    """``{"instruction": …, "input": …, "chosen": …, "rejected": …}`` of LLaMA-Factory.

    >>> row = {"instruction": "Add", "input": "1 1", "chosen": "2", "rejected": "3"}
    >>> [turn["content"] for turn in AlpacaPreference().convert_answer(row, 0)["messages"]]
    ['Add\\n1 1', '2']
    """

    name = "alpaca_preference"
    default_fields = {
        **{name: key for name, key in Alpaca.default_fields.items() if name != "output"},
        "chosen": "chosen",
        "rejected": "rejected",
    }
    required_fields = ("instruction", *ANSWERS)

    def _answers(self, row: Mapping[str, Any]) -> _Answers:
        texts = [as_text(self.get(row, name), self.fields[name]) for name in ANSWERS]
        fields = {name: key for name, key in self.fields.items() if name in Alpaca.default_fields}
        prompt: list[Message] = Alpaca(fields).convert({**row, "output": ""})["messages"][:-1]
        chosen, rejected = ([{"role": "assistant", "content": text}] for text in texts)
        return prompt, (chosen, rejected), False


class KtoFormat(RowFormat):
    """Conversion of a row into its conversation; the turns after the prompt are scored.

    The other sample of a row has the completion of another row, for the KL term of the loss.
    """

    view = KtoRows
    takes_attachments = False
    is_detected = False
    refused_columns = _LABELS
    conversation: ClassVar[type[RowFormat]]
    """Format of the same rows without their labels."""

    refusal = (
        "says which answers are wanted, and packing would train all of them: keep the rows you "
        "want, name a format of KTO (kto, messages_kto, sharegpt_kto)"
    )

    def __init__(self, fields: Mapping[str, str] | None = None, prompt: str | None = None) -> None:
        super().__init__(fields, prompt)
        self._conversation = self.conversation(
            {name: key for name, key in self.fields.items() if name != "label"}
        )

    @classmethod
    def matching_fields(cls, row: Mapping[str, Any]) -> Mapping[str, str] | None:
        labels = [name for name in _LABELS if isinstance(row.get(name), bool)]
        return next(({"label": name} for name in labels if cls({"label": name}).matches(row)), None)

    def convert(self, row: Mapping[str, Any]) -> dict[str, Any]:
        content = self._conversation.convert(row)
        messages: list[Message] = content["messages"]
        num_prompt = len(messages) - 1  # before the answer, which is the last turn
        if "prompt" in self.fields:
            prompt = self.get(row, "prompt")
            num_prompt = len(prompt) if isinstance(prompt, list) else 1
        if messages[-1].get("role") != "assistant":
            raise MalformedRowError(
                "its last turn is not from the assistant: it has no answer for the label"
            )
        if len(messages) < 2:
            raise MalformedRowError("it has only one turn: no prompt comes before the answer")
        return {**content, "completion": Completion(num_prompt)}

    def sample_of_part(self, part: RowAndOther, read: Callable[..., Sample]) -> Sample:
        """Return the sample with the row's answer in slot 0 if it is desirable, else in slot 1; its
        KL completion else.
        """
        own = read(part.row)
        if (part.slot == 0) == self.is_desirable(part.row):
            return own
        try:
            if isinstance(part.other, MalformedRowError):
                raise part.other
            other = read(part.other)
        except MalformedRowError as error:
            raise MalformedRowError(
                f"the row whose answer is its mismatch is malformed: {error}"
            ) from error
        assert own.completion is not None
        return replace(own, completion=replace(own.completion, borrowed=other))

    def is_desirable(self, row: Mapping[str, Any]) -> bool:
        """Return the label of a row.

        Raises:
            MalformedRowError: it is neither true nor false.
        """
        label = self.get(row, "label")
        if not isinstance(label, bool):
            raise MalformedRowError(
                f"{self.fields['label']!r} must be true or false and is {preview(label)}"
            )
        return label


class Kto(KtoFormat):
    """``{"prompt": …, "completion": …, "label": true}`` of TRL: texts or lists of turns.

    >>> row = {"prompt": "1+1?", "completion": "2", "label": True}
    >>> Kto().convert(row)["completion"].num_prompt, Kto().is_desirable(row)
    (1, True)
    """

    name = "kto"
    conversation = PromptCompletion
    default_fields = {**PromptCompletion.default_fields, "label": "label"}
    required_fields = ("prompt", "completion", "label")


class MessagesKto(KtoFormat):
    """``{"messages": […], "label": true}`` of LLaMA-Factory: the last turn is the answer.

    >>> turns = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "2"}]
    >>> MessagesKto().convert({"messages": turns, "label": False})["completion"].num_prompt
    1
    """

    name = "messages_kto"
    conversation = Messages
    default_fields = {**Messages.default_fields, "label": "label"}
    required_fields = ("messages", "label")


class ShareGPTKto(KtoFormat):
    """``{"conversations": […], "kto_tag": true}`` of LLaMA-Factory.

    >>> turns = [{"from": "human", "value": "1+1?"}, {"from": "gpt", "value": "2"}]
    >>> ShareGPTKto().is_desirable({"conversations": turns, "kto_tag": False})
    False
    """

    name = "sharegpt_kto"
    conversation = ShareGPT
    default_fields = {**ShareGPT.default_fields, "label": "kto_tag"}
    required_fields = ("conversations", "label")


class AlpacaKto(KtoFormat):
    """``{"instruction": …, "input": …, "output": …, "kto_tag": true}`` of LLaMA-Factory.

    >>> AlpacaKto().convert({"instruction": "Add", "output": "2", "kto_tag": True})["completion"].num_prompt
    1
    """

    name = "alpaca_kto"
    conversation = Alpaca
    default_fields = {**Alpaca.default_fields, "label": "kto_tag"}
    required_fields = ("instruction", "output", "label")


def _common_turns(chosen: list[Message], rejected: list[Message]) -> _Answers:
    """Split off the turns that chosen and rejected begin with; the last turn of either is never one
    of them.
    """
    num_common = _length_of_prefix(chosen, rejected)
    if num_common == 0:
        raise MalformedRowError(
            "it has no prompt, and chosen and rejected share no turn: give the prompt as turns"
        )
    return chosen[:num_common], (chosen[num_common:], rejected[num_common:]), False


def _common_text(chosen: str, rejected: str) -> _Answers:
    """Split off the characters that chosen and rejected begin with; a space at their end belongs to
    the answers.
    """
    num_common = _length_of_prefix(chosen, rejected)
    if num_common and chosen[num_common] != rejected[num_common] and chosen[num_common - 1] == " ":
        num_common -= 1
    if num_common == 0:
        raise MalformedRowError(
            "it has no prompt, and chosen and rejected have no common beginning: give the prompt"
        )
    prompt: Message = {"role": "user", "content": chosen[:num_common]}
    first, second = (
        [{"role": "assistant", "content": text[num_common:]}] for text in (chosen, rejected)
    )
    return [prompt], (first, second), True


def _length_of_prefix(one: Sequence[Any], other: Sequence[Any]) -> int:
    """Return the length of the common prefix, below that of the shorter sequence, as in TRL's
    ``extract_prompt``.
    """
    limit = min(len(one), len(other)) - 1
    return next((index for index in range(limit) if one[index] != other[index]), max(limit, 0))


register(ShareGPTPreference, AlpacaPreference, Preference, Kto, MessagesKto, ShareGPTKto, AlpacaKto)
