"""Spans of characters in the texts of a batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

import numpy as np

from brimful.base.typing import Int64Array

Span: TypeAlias = tuple[int, int]
"""Characters ``[start, end)`` of a text."""


class TextSpans(NamedTuple):
    """Spans in several texts, in any order.

    Attributes:
        rows: index of the text of each span, ``int64[num_spans]``.
        starts: its first character.
        ends: the character after its last.

    >>> TextSpans.of_lists({2: [(0, 3), (5, 9)]}).rows.tolist()
    [2, 2]
    """

    rows: Int64Array
    starts: Int64Array
    ends: Int64Array

    @classmethod
    def of_lists(cls, spans: Mapping[int, Sequence[Span]]) -> TextSpans:
        """Return the spans of texts, each list under the index of its text."""
        num_spans = np.fromiter(map(len, spans.values()), dtype=np.int64)
        rows = np.repeat(np.fromiter(spans, dtype=np.int64), num_spans)
        edges = np.fromiter(chain.from_iterable(chain.from_iterable(spans.values())), dtype=np.int64)
        return cls(rows, edges[::2], edges[1::2])

    @classmethod
    def joined(cls, parts: Sequence[TextSpans]) -> TextSpans:
        """Return the spans of several parts of a batch together."""
        return cls(*(np.concatenate(columns) for columns in zip(*parts, strict=True)))
