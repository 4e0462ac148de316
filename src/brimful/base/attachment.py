"""Attachments: what travels with a sample in addition to its tokens, such as its images.

The packages of the line carry attachments, and know of their kinds only the names. Images, videos
and audio are in the room ``media``; ``brimful.base.wings`` names its modules, which are loaded when
something needs them.

An attachment of an encoded sample or a pack is a frozen dataclass with ``start``, the first of its
tokens, and ``length``, their number, both counted in the sample or in the pack; ``segment``, the
number of the segment that it belongs to, 0 in a sample; ``title``, kind and name for messages;
``identity``, bytes that are equal if a model reads two of them as equal; and ``is_unchanged``, true
if its file is as it was measured. What becomes an input of the model is ``AttachedInputs``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from importlib import import_module
from typing import Any

from brimful.base.typing import AnyArray, Int32Array
from brimful.base.wings import ATTACHMENT_INPUTS, ATTACHMENT_STORE

CONTAINER_BYTES = 256 << 20
"""Target size of the bytes that come with one shard: a killed job rewrites at most one for each
process.
"""

ATTACHMENT_KINDS = {"image": "images", "video": "videos", "audio": "audio"}
"""Kinds of attachments, by the names that rows of data and keys of batches give them, with their
plurals.
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
    """Return the package of attachments in files (``brimful.media.store``). It has:

    - ``COLUMNS``: names of their columns in a shard, in the order in which they enter the checksum
      of a row;
    - ``column_types()``: the Arrow type of each column;
    - ``cells_of(items, root="")``: the cells of a pack; paths of files below ``root`` are relative
      to it;
    - ``columns_of(cells)``: the columns of some packs, as Arrow arrays;
    - ``files_of(store, records, notes, root=None)``: the files that the packs of a log refer to,
      with their ``root`` and ``census(directory)``, which counts them (``kinds``, ``lines()``,
      ``as_dict()``); ``root`` is the current directory of references, the recorded one if None;
    - ``stored(cells, files)``: the attachments of a pack from its cells;
    - ``to_json(items)``: the attachments of a sample without their bytes; ``from_json(text)`` gives
      them back;
    - ``check_of(files)``: a check of the attachments of a store: ``check_shard(record)``,
      ``check(pack, name)``, and ``num_checked`` attachments so far.
    """
    return import_module(ATTACHMENT_STORE)


@dataclass(frozen=True, slots=True)
class AttachedInputs:
    """Inputs of a model for all attachments of one kind in a pack or a batch, in the order of their
    tokens.

    Attributes:
        kind: one of ``ATTACHMENT_KINDS``.
        segments: ``int32[num_items]``: the segment that each item belongs to.
        arrays: by the name of the model's argument (``pixel_values``, ``input_features``). Arrays
            of several packs are joined on their first axis.

    >>> import numpy as np
    >>> grid = {"image_grid_thw": np.array([[1, 2, 2], [1, 4, 2]])}
    >>> images = AttachedInputs("image", np.array([0, 2], dtype=np.int32), grid)
    >>> images.segments.tolist(), images.arrays["image_grid_thw"].shape
    ([0, 2], (2, 3))
    """

    kind: str
    segments: Int32Array
    arrays: Mapping[str, AnyArray]


def attachment_inputs() -> Any:
    """Return the module of inputs for attachments in plain samples, which users and other trainers
    tokenized, and in batches (``brimful.media.tokenized``). It has:

    - ``ARRAY_KEYS``: keys of plain samples and batches that are inputs; ``KEYS``: these, and keys
      of plain samples that say for each token whether it stands for one;
    - ``of_row(row, tokens, token_ids)``: the ``AttachedInputs`` of a ``TokenizedRow`` with its
      ``RowTokens``, the indices of the tokens that stand for each kind, and the marks that say so;
      ``token_ids`` has the token of each kind, as far as the model is known;
    - ``check_positions(sample, name)``: refuses a sample whose inputs need positions that it lacks;
    - ``completed(extras, packs, is_plain)``: the ``PackExtras`` of the packs of a batch; the packs
      of plain samples get the positions and marks that others have;
    - ``join(parts)``: inputs of several packs as inputs of one row; ``parts`` are pairs of the
      first segment of a pack in the row, and its inputs.
    """
    return import_module(ATTACHMENT_INPUTS)


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
        position = item.start - start
        if position >= length or position + item.length <= 0:
            continue  # in another part of the sample
        if position < 0 or position + item.length > length:
            raise BadAttachmentError(f"the sample was cut within {item.title}")
        yield replace(item, start=offset + position, segment=segment)
