"""Attachments: what travels with a sample in addition to its tokens, such as its images.

The packages of the line carry attachments and do not know their kinds. Images, videos and audio are
one kind, in the room ``media``; ``brimful.base.wings`` names it, and it is loaded when it is
needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from enum import Enum
from importlib import import_module
from typing import Any

from brimful.base.wings import ATTACHMENT_JOBS, ATTACHMENT_STORE

CONTAINER_BYTES = 256 << 20
"""Target size of the bytes that come with one shard: a killed job rewrites at most one for each
process.
"""


class AttachmentStorage(str, Enum):
    """Storage of attachments that are in files. Bytes that came with rows are always in the
    store.
    """

    REFERENCES = "references"
    """Path, offset, size and fingerprint; the files must exist when packs are read."""
    BYTES = "bytes"
    """Their bytes, each distinct content once: the store is complete."""
    FEATURES = "features"
    """Arrays from the model's processor, each distinct content once: training needs neither files
    nor processor.
    """


class BadAttachmentError(ValueError):
    """An attachment that cannot be used; gives the reason without its name, which the caller
    adds.
    """


def attachment_store() -> Any:
    """Return the package of attachments in the files of pack stores (``brimful.media.store``). It
    has:

    - ``COLUMNS``: names of their columns in a shard, in the order in which they enter the checksum
      of a row;
    - ``column_types()``: the Arrow type of each column;
    - ``cells_of(items, root="")``: the cells of a pack; paths of files below ``root`` are relative
      to it;
    - ``columns_of(cells)``: the columns of some packs, as Arrow arrays;
    - ``files_of(store, records, notes, root=None)``: the files that the packs of a log refer to,
      with their ``root`` and ``census(directory)``; ``root`` is the current directory of
      references, the recorded one if None;
    - ``stored(cells, files)``: the attachments of a pack from its cells;
    - ``to_json(items)``: the attachments of a sample without their bytes; ``from_json(text)`` gives
      them back;
    - ``check_of(files)``: a check of the attachments of a store: ``check_shard(record)`` and
      ``check(pack, name)``.

    An attachment is a frozen dataclass with ``start``, the first of its tokens, and ``length``,
    their number, both counted in the sample or in the pack; ``segment``, the number of the segment
    that it belongs to, 0 in a sample; ``title``, kind and name for messages; and ``identity``,
    bytes that are equal if a model reads two of them as equal.
    """
    return import_module(ATTACHMENT_STORE)


def attachment_jobs() -> Any:
    """Return the package with the attachments of jobs that write packs (``brimful.media.job``)."""
    return import_module(ATTACHMENT_JOBS)


def attachments_of_segment(
    items: Iterable[Any], *, start: int, length: int, segment: int = 0, offset: int = 0
) -> Iterator[Any]:
    """Yield the attachments of one segment of a sample, placed in a pack.

    Args:
        items: of the whole sample.
        start: first token of the sample in the segment.
        length: tokens of the segment.
        segment: its number in the pack.
        offset: its first token in the pack.

    Raises:
        BadAttachmentError: the segment holds a part of an attachment.

    >>> from brimful.media import MediaKind, Medium, PlacedMedium
    >>> image = PlacedMedium(Medium(MediaKind.IMAGE, "a"), start=5, length=4, num_tokens=4)
    >>> moved = attachments_of_segment([image], start=2, length=8, segment=1, offset=100)
    >>> [(item.segment, item.start) for item in moved]
    [(1, 103)]
    >>> list(attachments_of_segment([image], start=9, length=8))
    []
    """
    for item in items:
        place = item.start - start
        if place >= length or place + item.length <= 0:
            continue  # in another part of the sample
        if place < 0 or place + item.length > length:
            raise BadAttachmentError(f"the sample was cut within {item.title}")
        yield replace(item, start=offset + place, segment=segment)
