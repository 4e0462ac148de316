"""Filter of samples with the content of an earlier one.

A sample is a duplicate if one with a smaller ``sample_id`` has the same content and was not
rejected: the order of work and the number of processes do not matter. Contents are compared by
fingerprints of 128 bits, which are measured with the lengths, block by block, and compared when all
are complete.
"""

import json
from dataclasses import dataclass

import numpy as np

from brimful.base.attachment import BadAttachmentError
from brimful.base.fingerprint import fingerprint_bytes
from brimful.base.typing import Int64Array
from brimful.measure.filters.filter import Filter
from brimful.sources.sample import Sample

CONTENT = ("content_high", "content_low")
"""Columns of a block's file with the two halves of the fingerprint of each sample's content."""


@dataclass(frozen=True)
class Duplicates(Filter):
    """Filter of samples whose messages, tools and media equal an earlier sample's byte for byte.

    One image with five captions makes five samples: no two of them have the same content.
    """

    name = "duplicates"
    form = "duplicates"
    summary = "samples with the content of an earlier one"

    @classmethod
    def parse(cls, text: str) -> "Duplicates":
        if text:
            raise ValueError(text)
        return cls()

    def reason(self, sample: Sample) -> str | None:
        return None  # a single sample has no duplicate


def content_of(sample: Sample) -> tuple[int, int]:
    """Return the fingerprint of a sample's content as two numbers of 64 bits; zeros if a medium
    cannot be read.

    >>> content_of(Sample(0, text="a")) == content_of(Sample(7, text="a", unread=("id",)))
    True
    """
    try:
        media = [[medium.kind.value, medium.fingerprint()] for medium in sample.media]
    except BadAttachmentError:
        return 0, 0
    tokens = [
        None if values is None else list(map(int, values))
        for values in (sample.input_ids, sample.labels)
    ]
    messages = None if sample.messages is None else list(sample.messages)
    # Values that JSON does not support (dates of a table, bytes) are compared by their
    # representation.
    content = [messages, sample.text, sample.tools, tokens, media]
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, default=repr)
    digest = fingerprint_bytes(text.encode("utf-8", "surrogatepass"))
    high, low = np.frombuffer(bytes.fromhex(digest), dtype="<i8").tolist()
    return high, low


def first_of_each(
    high: Int64Array, low: Int64Array, is_kept: "np.ndarray[tuple[int], np.dtype[np.bool_]]"
) -> Int64Array:
    """Return for each sample the first one with its content, and -1 for samples that are not kept.

    Args:
        high, low: ``int64[num_samples]``, halves of the fingerprints.
        is_kept: ``bool[num_samples]``, false for rejected samples, which are never the original.

    >>> high, low = np.array([5, 5, 6, 5]), np.array([1, 1, 1, 1])
    >>> first_of_each(high, low, np.array([False, True, True, True])).tolist()
    [-1, 1, 2, 1]
    """
    firsts = np.full(len(high), -1, dtype=np.int64)
    ids = np.flatnonzero(is_kept)
    if not len(ids):
        return firsts
    # A stable sort: of equal contents, the smallest id comes first.
    order = ids[np.lexsort((low[ids], high[ids]))]
    is_new = np.ones(len(order), dtype=bool)
    is_new[1:] = (high[order][1:] != high[order][:-1]) | (low[order][1:] != low[order][:-1])
    firsts[order] = order[np.flatnonzero(is_new)[np.cumsum(is_new) - 1]]
    return firsts
