"""The reading of a row by its format; columns that the format does not read are refused or named.

A column is *read* if the row's format takes it. Of the others, some change what the sample means:
the image of a question, the rejected answer, the label that says an answer was bad. A row with such
a column is an error, unless the caller says that it may be ignored. The rest (``id``, ``source``,
…) is named once, with the share of rows that have it.

>>> refusal(unread_columns({"messages": [], "label": False}, frozenset({"messages"})))
... # doctest: +ELLIPSIS
'column ...label... says which answers are wanted...'
>>> refusal(unread_columns({"text": "a", "id": 3}, frozenset({"text"}))) is None
True
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, groupby, islice
from pathlib import Path
from typing import Any

from brimful.base.attachment import ATTACHMENT_KINDS
from brimful.base.checks import MalformedRowError
from brimful.base.wording import setting
from brimful.errors import BadSampleError
from brimful.sources.answers import AnswerRows, row_of, sample_of_answer
from brimful.sources.attachment_names import COLUMNS, Placing, may_have_marks, placeholder
from brimful.sources.formats import RowFormat, suggested
from brimful.sources.formats.row_format import REFUSED_COLUMNS
from brimful.sources.rows import ROW_FAULTS, Rows
from brimful.sources.sample import Message, PlainMessages, Sample, unusual_messages

MESSAGE_KEYS = frozenset(
    (
        "role",
        "content",
        "tool_calls",
        "tool_call_id",
        "name",
        "weight",
        "loss_weight",
        "reasoning_content",
    )
)
"""Keys of a message that are read, by the chat template or by the search for targets."""

NEEDS_PROCESSOR = "which takes the processor of a model: name it with " + setting(
    "processor", python="open_source(…, media_dir=…) and encoder_for(…, media=open_family(…))"
)
"""Remedy for rows with attachments, if these are not taken."""

_OBJECTS = {dict}

_ROWS_AT_ONCE = 64
"""Number of rows that are converted together: few enough to hold both rows and samples in
memory.
"""


@dataclass(frozen=True)
class Reading:
    """A format, the columns and marks to ignore, and the reading of attachments if they are taken.

    >>> from brimful.sources.formats import format_named
    >>> Reading(format_named("text")).sample(3, {"text": "a", "id": 7}).unread
    ('id',)
    """

    format: RowFormat
    ignore: frozenset[str] = frozenset()
    placing: Placing | None = None
    per_turn: bool = False
    """True if the rows are parts of an ``AnswerRows``."""

    def view(self, rows: Rows, cache: Path | None = None) -> Rows:
        """Return the rows of a file as one row for each sample.

        Args:
            rows: of the file.
            cache: directory of what is counted once; None for the default.
        """
        if self.format.view is not None:
            return self.format.view(rows)
        return AnswerRows(rows, self.format, cache) if self.per_turn else rows

    @property
    def settings(self) -> dict[str, Any]:
        """The settings that decide, together with a row, the content of its sample."""
        settings = self.format.settings
        # The directory of the attachments is not among them: a copy elsewhere holds the same samples.
        optional = {
            "ignore": sorted(self.ignore),
            "media": self.placing is not None,
            "per_turn": self.per_turn,
        }
        return {**settings, **{name: value for name, value in optional.items() if value}}

    def read(
        self, sample_ids: Iterable[int], rows: Iterator[Any], where: Callable[[int], str]
    ) -> Iterator[Sample | BadSampleError]:
        """Yield the sample of each row, or the error that names its place.

        Args:
            sample_ids: of the rows, as far as there are any.
            rows: rows, or ``MalformedRowError`` of those that cannot be read.
            where: function from a sample id to file and line.
        """
        return (self._read_answers if self.per_turn else self._read_rows)(sample_ids, rows, where)

    def _read_answers(
        self, sample_ids: Iterable[int], answers: Iterator[Any], where: Callable[[int], str]
    ) -> Iterator[Sample | BadSampleError]:
        """Yield the sample of each answer. Answers of one row follow one another: it is converted
        once for them.
        """
        for ids, pieces in _together(sample_ids, answers):
            pairs = zip(ids, pieces, strict=True)
            runs = [[*run] for _, run in groupby(pairs, lambda pair: id(row_of(pair[1])))]
            rows = [row_of(run[0][1]) for run in runs]
            samples = self._read_rows([run[0][0] for run in runs], iter(rows), where)
            for run, sample in zip(runs, samples, strict=True):
                for sample_id, item in run:
                    if isinstance(sample, BadSampleError):
                        location = where(sample_id)
                        yield BadSampleError(sample.reason, sample_id=sample_id, where=location)
                    else:
                        yield sample_of_answer(
                            replace(sample, sample_id=sample_id),
                            item.answer,
                            are_alternatives=self.format.answers_are_alternatives,
                        )

    def _read_rows(
        self, sample_ids: Iterable[int], rows: Iterator[Any], where: Callable[[int], str]
    ) -> Iterator[Sample | BadSampleError]:
        if not self.format.has_conversations or self.placing is not None:
            for sample_id, row in zip(sample_ids, rows, strict=False):
                yield self.convert(sample_id, row, where)
            return
        for ids, some_rows in _together(sample_ids, rows):
            for sample_id, row, sample in zip(
                ids, some_rows, self.samples(ids, some_rows), strict=True
            ):
                yield self.convert(sample_id, row, where) if sample is None else sample

    def convert(
        self, sample_id: int, row: Any, where: Callable[[int], str]
    ) -> Sample | BadSampleError:
        """Return the sample of a row, or the error that names its place."""
        try:
            if isinstance(row, MalformedRowError):
                raise row
            return self.sample(sample_id, row)
        except MalformedRowError as error:
            reason = str(error)
        except ROW_FAULTS as error:
            reason = (
                f"cannot be read as format {self.format.name} ({type(error).__name__}: {error})"
            )
        return BadSampleError(reason, sample_id=sample_id, where=where(sample_id))

    def samples(self, sample_ids: Sequence[int], rows: Sequence[Any]) -> Sequence[Sample | None]:
        """Convert rows that are conversations of texts: checks of all rows together are cheap for
        each.

        None for a row that ``sample`` has to convert or refuse.
        """
        others = [None] * len(rows)
        if set(map(type, rows)) != _OBJECTS:
            return others
        columns = self.format.columns
        unread = set().union(*set(map(tuple, rows))) - columns
        if unread and not unread.isdisjoint({*COLUMNS, *REFUSED_COLUMNS}):
            return others
        conversations = self.format.conversations(rows)
        texts = "\n".join(
            chain.from_iterable([turns.texts for turns in conversations if turns is not None])
        )
        if may_have_marks(texts):
            return others
        return [
            None
            if turns is None
            else Sample(sample_id, messages=turns)
            if not unread
            else Sample(
                sample_id,
                messages=turns,
                unread=tuple(unread_columns(row, columns, ignore=self.ignore)),
            )
            for sample_id, row, turns in zip(sample_ids, rows, conversations, strict=False)
        ]

    def sample(self, sample_id: int, row: Any) -> Sample:
        """Convert a row to a sample.

        Raises:
            MalformedRowError: it is not a row of this format, or has content that cannot be packed.
        """
        if self.format.view is None:
            return self._sample(sample_id, row)
        return self.format.sample_of_part(row, partial(self._sample, sample_id))

    def _sample(
        self,
        sample_id: int,
        row: Any,
        convert: Callable[[Mapping[str, Any]], dict[str, Any]] | None = None,
    ) -> Sample:
        unread = unread_columns(row, self.format.columns, ignore=self.ignore)
        attached_columns: list[str] = []
        if unread:
            if self.placing is not None:
                attached_columns = [column for column in unread if column in COLUMNS]
                unread = [column for column in unread if column not in attached_columns]
            reason = refusal(unread)
            if reason is not None:
                raise MalformedRowError(reason)
        try:
            content = (convert or self.format.convert)(row)
        except MalformedRowError as error:
            suggestion = "" if self.format.matches(row) else suggested(row)
            if not suggestion:
                raise
            raise MalformedRowError(f"{error}: its keys fit {suggestion}") from error
        if (
            self.format.puts_attachments_first
            and not attached_columns
            and self.ignore.isdisjoint(COLUMNS)
        ):
            raise MalformedRowError(
                f"it has no medium, and a row of format {self.format.name} needs one"
            )
        if self.placing is not None:
            values = {column: row[column] for column in attached_columns}
            content |= self.placing.placed(content, values, self.format, ignore=self.ignore)
        messages = content.get("messages")
        if messages is None:
            texts: list[Any] = [content.get("text")]
        elif (
            plain := messages if type(messages) is PlainMessages else PlainMessages.of(messages)
        ) is not None:
            content["messages"], texts = plain, plain.texts  # text parts have been joined since
        else:
            if self.placing is None and any(
                type(message.get("content")) is list for message in messages
            ):
                raise MalformedRowError(f"its messages hold media, {NEEDS_PROCESSOR}")
            texts = []
            for message in messages:
                value = message.get("content")
                texts += [part.get("text") for part in value] if type(value) is list else [value]
            unread += sorted(unread_of_messages(unusual_messages(messages)) - self.ignore)
        # Checked all at once: nearly no row has a mark.
        if may_have_marks("\n".join(filter(None, texts))):
            marks = (placeholder(text, ignore=self.ignore) for text in texts if text)
            mark = next(filter(None, marks), None)
            if mark is not None:
                reason = NEEDS_PROCESSOR if self.placing is None else "and it has none"
                raise MalformedRowError(
                    f"its text holds {mark} where a medium belongs, {reason}: if it is plain text, "
                    f"say so with {setting('ignore', [mark])}"
                )
        return Sample(sample_id, **content, unread=tuple(unread))


def _together(
    sample_ids: Iterable[int], rows: Iterator[Any]
) -> Iterator[tuple[list[int], list[Any]]]:
    """Yield the ids of some samples and their rows, as far as there are any of both."""
    remaining_ids = iter(sample_ids)
    while ids := [*islice(remaining_ids, _ROWS_AT_ONCE)]:
        some_rows = [*islice(rows, len(ids))]
        if some_rows:
            yield ids[: len(some_rows)], some_rows
        if len(some_rows) < len(ids):
            return


def refusal(columns: Sequence[str]) -> str | None:
    """Return the reason to refuse a row with these unread columns; None if it can be packed without
    them.
    """
    for column in columns:
        if column in COLUMNS:
            return (
                f"column {column!r} holds {ATTACHMENT_KINDS[COLUMNS[column]]}, {NEEDS_PROCESSOR}, or leave it out with "
                f"{setting('ignore', [column])}"
            )
        if column in REFUSED_COLUMNS:
            reason = REFUSED_COLUMNS[column].refusal
            return f"column {column!r} {reason}, or leave it out with {setting('ignore', [column])}"
    return None


def unread_columns(
    row: Any, columns: frozenset[str], *, ignore: frozenset[str] = frozenset()
) -> list[str]:
    """Return the columns of a row that its format does not read and that hold something.

    Args:
        row: as in its file; a bare text has no columns.
        columns: columns that its format reads.
        ignore: columns that the caller ignores.
    """
    # Runs for every row: checking for ``dict`` first takes a tenth of the time of the abstract
    # class.
    if (type(row) is not dict and not isinstance(row, Mapping)) or row.keys() <= columns:
        return []
    names = [
        str(column)
        for column, value in row.items()
        if column not in columns and not _is_empty(value)
    ]
    return [name for name in names if name not in ignore]


def unread_of_messages(messages: Sequence[Message]) -> set[str]:
    """Return the keys of messages that OpenAI's format does not have; a chat template may use
    them.
    """
    return {
        f"messages[].{key}"
        for message in messages
        if len(message) > 2
        and not message.keys() <= MESSAGE_KEYS  # two are a role and a text, or calls
        for key, value in message.items()
        if key not in MESSAGE_KEYS and not _is_empty(value)
    }


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, (str, list, tuple, dict)) and len(value) == 0)
