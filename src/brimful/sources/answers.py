"""Answers of conversations, each a sample of its own together with the turns before it.

A chat template may write the turns before an answer differently from answer to answer: it removes
the thoughts of earlier ones. A model sees each answer after exactly such a text, so each answer is
trained after its own rendering::

    row 0    user  assistant  user  assistant        sample 0    user  assistant
                                                     sample 1    user  assistant  user  assistant
    row 1    user  assistant                         sample 2    user  assistant

The number of answers of each row decides which row a sample belongs to. It is counted once, block
by block, and kept in the cache by the content of the rows and the settings of their format.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain, islice, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from brimful.base.checks import MalformedRowError
from brimful.base.fingerprint import fingerprint_of
from brimful.base.locks import cache_dir, cached, exclusive
from brimful.base.ragged import offsets_of
from brimful.base.tables import open_table, write_table
from brimful.base.typing import Fingerprint, Int32Array, Offsets
from brimful.errors import BrimfulError
from brimful.sources.rows import (
    BLOCK_BYTES,
    BLOCK_ROWS,
    ROW_FAULTS,
    Block,
    Rows,
    WrappedRows,
)
from brimful.sources.sample import Message, PlainMessages, Sample, first_messages, is_empty, weight

if TYPE_CHECKING:
    from brimful.sources.formats.row_format import RowFormat

_TABLE_NAME, _VERSION = "answers", 1

_FEW_ROWS = 1024
_FEW_BYTES = 1 << 18
"""Rows and bytes up to which a block is counted whenever it is opened: its numbers are not kept."""

_ROWS_AT_ONCE = 64

_OBJECTS = {dict}


class AnswerOfRow(NamedTuple):
    """A row, and which of its answers is meant, from 0."""

    row: Any
    answer: int


class AnswerRows(WrappedRows):
    """Rows of conversations, each as often as it has answers; once if it has none or is malformed.

    The samples of a row need not be in one pack.

    Args:
        rows: of one file or table.
        row_format: format of the rows, which gives their turns.
        cache: directory of kept numbers; None for the default.

    >>> from brimful.sources.formats import format_named
    >>> from brimful.sources.memory import MemoryRows
    >>> turns = [{"role": role, "content": "x"} for role in ("user", "assistant", "assistant")]
    >>> rows = AnswerRows(MemoryRows([{"messages": turns}, {}]), format_named("messages"))
    >>> len(rows), rows.get(1).answer, rows.where(1), rows.where(2)
    (3, 1, 'memory[0], answer 2', 'memory[1]')
    """

    def __init__(self, rows: Rows, row_format: RowFormat, cache: Path | None = None) -> None:
        super().__init__(rows)
        self._counts = _kept_counts(rows, row_format, cache)

    @cached_property
    def _edges(self) -> Offsets:
        """``int64[num_rows + 1]``: the first sample of each row."""
        return offsets_of(self._counts)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_edges"}

    def __len__(self) -> int:
        return int(self._edges[-1])

    @property
    def num_rows(self) -> int:
        return len(self._counts)

    @property
    def samples_by_row(self) -> Int32Array:
        return self._counts

    def _row_of(self, index: int) -> int:
        return int(np.searchsorted(self._edges, index, side="right")) - 1

    def read(self, start: int, stop: int) -> Iterator[Any]:
        if start >= stop:
            return iter(())
        first, last = self._row_of(start), self._row_of(stop - 1) + 1
        counts = self._counts[first:last].tolist()
        answers = chain.from_iterable(map(_answers_of, self._rows.read(first, last), counts))
        first_answer = int(self._edges[first])
        return islice(answers, start - first_answer, stop - first_answer)

    def read_many(self, indices: Iterable[int]) -> Iterator[Any]:
        pairs = [(row := self._row_of(index), index - int(self._edges[row])) for index in indices]
        # A row is read once for all its answers.
        row_indices = dict.fromkeys(row for row, _ in pairs)
        rows = dict(zip(row_indices, self._rows.read_many(row_indices), strict=True))
        return (_answer_of(rows[row], answer) for row, answer in pairs)

    def where(self, index: int) -> str:
        row = self._row_of(index)
        location = self._rows.where(row)
        if self._counts[row] == 1:
            return location
        return f"{location}, answer {index - int(self._edges[row]) + 1}"

    @cached_property
    def blocks(self) -> Sequence[Block]:
        """The blocks of the rows; one of many samples, or of much text, in several pieces."""
        return [piece for block in self._rows.blocks for piece in self._pieces(block)]

    def _pieces(self, block: Block) -> Iterator[Block]:
        edges = self._edges[block.start : block.stop + 1]
        # The sample of an answer begins with all turns before it: on average with half of the row.
        row_bytes = (block.num_bytes or 0) / len(block)
        num_bytes = offsets_of(self._counts[block.start : block.stop] + 1) / 2 * row_bytes
        start = 0
        while start < len(block):
            stop = min(
                int(np.searchsorted(sizes, sizes[start] + limit, side="right")) - 1
                for sizes, limit in ((edges, BLOCK_ROWS), (num_bytes, BLOCK_BYTES))
            )
            stop = max(stop, start + 1)
            # A piece is identified by its place in the block.
            identity = [] if stop - start == len(block) else [start, stop]
            yield Block(
                int(edges[start]),
                int(edges[stop]),
                fingerprint_of([block.fingerprint, _TABLE_NAME, *identity]),
                None if block.num_bytes is None else int(num_bytes[stop] - num_bytes[start]),
            )
            start = stop

    @property
    def members(self) -> list[tuple[str, int]]:
        titles, sizes = zip(*self._rows.members, strict=True)
        edges = self._edges[offsets_of(sizes)]
        return list(zip(titles, np.diff(edges).tolist(), strict=True))

    @property
    def fingerprint(self) -> Fingerprint:
        return fingerprint_of([self._rows.fingerprint, _TABLE_NAME])

    def prefix_fingerprints(self, count: int) -> Sequence[Fingerprint]:
        row = int(np.searchsorted(self._edges, count))
        # Some answers of a row are not an earlier state of a file.
        if row == len(self._edges) or self._edges[row] != count:
            return []
        return [
            fingerprint_of([fingerprint, _TABLE_NAME])
            for fingerprint in self._rows.prefix_fingerprints(row)
        ]


def _answer_of(row: Any, answer: int) -> Any:
    return row if isinstance(row, MalformedRowError) else AnswerOfRow(row, answer)


def row_of(item: Any) -> Any:
    """Return the row of a part that ``AnswerRows`` yields, or the error that says why it cannot be
    read.
    """
    return item if isinstance(item, MalformedRowError) else item.row


def _answers_of(row: Any, count: int) -> Iterable[Any]:
    return map(_answer_of, repeat(row, count), range(count))


def _kept_counts(rows: Rows, row_format: RowFormat, cache: Path | None) -> Int32Array:
    """Return the number of samples of each row; one process of many counts them."""
    folder = (cache or cache_dir()) / "answers"
    folder /= fingerprint_of([_VERSION, row_format.settings])[:16]
    counts = np.empty(len(rows), dtype=np.int32)
    missing: list[tuple[Block, Path]] = []
    for block in rows.blocks:
        if len(block) <= _FEW_ROWS and (block.num_bytes or 0) <= _FEW_BYTES:
            counts[block.start : block.stop] = _counted(rows, block, row_format)
            continue
        path = cached(folder / f"{block.fingerprint}.arrow")
        kept = _load(path, len(block))
        if kept is None:
            missing.append((block, path))
        else:
            counts[block.start : block.stop] = kept
    if missing:
        with exclusive(cached(folder / rows.fingerprint)):
            for block, path in missing:
                # Another process may have counted it while this one waited for the lock.
                kept = _load(path, len(block))
                if kept is None:
                    kept = _counted(rows, block, row_format)
                    write_table(path, {"answers": kept}, {"kind": _TABLE_NAME}, durable=False)
                counts[block.start : block.stop] = kept
    return counts


def _load(path: Path, num_rows: int) -> Int32Array | None:
    try:
        counts = open_table(path).flat("answers")
    except (FileNotFoundError, BrimfulError):
        return None
    return counts if len(counts) == num_rows else None


def _counted(rows: Rows, block: Block, row_format: RowFormat) -> Int32Array:
    """Return the number of samples of each row of a block: of its answers, at least 1."""
    counts: list[int] = []
    remaining = rows.read(block.start, block.stop)
    while piece := [*islice(remaining, _ROWS_AT_ONCE)]:
        conversations: Sequence[Sequence[Message] | None] = [None] * len(piece)
        if row_format.has_conversations and set(map(type, piece)) == _OBJECTS:
            conversations = row_format.conversations(piece)
        for row, turns in zip(piece, conversations, strict=True):
            messages = _turns(row, row_format) if turns is None else turns
            counts.append(max(1, len(indices_of_answers(messages))))
    return np.array(counts, dtype=np.int32)


def _turns(row: Any, row_format: RowFormat) -> Sequence[Message]:
    """Return the turns of a row; none of a row that cannot be read."""
    if isinstance(row, MalformedRowError):
        return ()
    try:
        turns: Sequence[Message] = row_format.convert(row)["messages"]
    except ROW_FAULTS:
        return ()
    return turns


def indices_of_answers(messages: Sequence[Message]) -> list[int]:
    """Return the indices of the messages that are trained: the assistant's, unless they are empty
    or have weight 0.

    >>> call = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "f"}}]}
    >>> indices_of_answers([{"role": "user", "content": "a"}, call, {"role": "assistant", "content": ""}])
    [1]
    """
    if type(messages) is PlainMessages:
        return [index for index, role in enumerate(messages.roles) if role == "assistant"]
    return [
        index
        for index, message in enumerate(messages)
        if message["role"] == "assistant" and not is_empty(message) and weight(message) != 0
    ]


def sample_of_answer(row: Sample, answer: int, *, are_alternatives: bool = False) -> Sample:
    """Return the sample of one answer from the sample of the whole row.

    Args:
        row: the whole conversation; it stays whole if it has no answer.
        answer: which of its answers, from 0.
        are_alternatives: each answer follows the first turn alone, not the answers before it.

    >>> turns = [{"role": role, "content": role} for role in ("user", "assistant") * 2]
    >>> len(sample_of_answer(Sample(0, messages=turns), 0).messages)
    2
    """
    messages = row.messages or ()
    indices = indices_of_answers(messages)
    if not indices:
        return row
    index = indices[answer]
    if not are_alternatives:
        kept: Sequence[int] = range(index + 1)
        result = first_messages(messages, index + 1)
    else:
        kept = (0, index)
        result = [messages[index] for index in kept]
    items = row.attachments
    if items:
        edges = offsets_of([*map(_num_attachments, messages)]).tolist()
        items = tuple(chain.from_iterable(items[edges[index] : edges[index + 1]] for index in kept))
    return replace(row, messages=result, attachments=items)


def _num_attachments(message: Message) -> int:
    content = message.get("content")
    return sum(part.get("type") != "text" for part in content) if type(content) is list else 0
