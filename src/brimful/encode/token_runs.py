"""Stored tokens: samples that are already encoded, one file for each block of the source.

A job that measures and then writes tokenizes once: measuring leaves its tokens here, and writing reads them. The files
are temporary and belong to one job. Each process compares a file with its checksum when it first opens it: packs are
made from these files, and no later step would notice wrong tokens.

Media are kept by their places among the tokens, with the state in which each file was measured (``Medium.stamp``).
Bytes that came with a row are not copied: read them from the row.
"""

import os
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from brimful.base.attachment import BadAttachmentError, attachment_store
from brimful.base.ragged import offsets_of
from brimful.base.tables import Ragged, open_table, write_table
from brimful.base.typing import LossMask, TokenIds
from brimful.encode.encoded import EncodedSample
from brimful.errors import BrimfulError, CorruptFileError

_MAX_OPEN_FILES = 512


def write_stored(
    path: str | os.PathLike[str],
    ids: Ragged,
    loss_mask: LossMask,
    media: Mapping[int, Sequence[Any]] | None = None,
) -> None:
    """Write the samples of one block.

    Args:
        ids: ``int32``, a row for each sample; empty for a rejected one.
        loss_mask: ``bool[len(ids.values)]``.
        media: media of each row that has any.
    """
    columns = {"ids": ids, "loss_mask": Ragged(loss_mask.view(np.uint8), ids.offsets)}
    if media:
        texts = [attachment_store().to_json(media[row]) if row in media else b"" for row in range(len(ids))]
        columns["media"] = Ragged(np.frombuffer(b"".join(texts), dtype=np.uint8), offsets_of([*map(len, texts)]))
    write_table(path, columns, {"kind": "encoded"})


class _File(NamedTuple):
    """The samples of one file; media as JSON, None if no sample has any."""

    offsets: list[int]
    ids: TokenIds
    loss_mask: LossMask
    media: Ragged | None


def _open(path: str | os.PathLike[str], *, checked: bool = True) -> _File:
    """Map a file; its columns are compared with their checksums if ``checked``."""
    table = open_table(path)
    ids, loss_mask = (table.ragged(name, checked=checked) for name in ("ids", "loss_mask"))
    media = table.ragged("media", checked=checked) if "media" in table else None
    return _File(ids.offsets.tolist(), ids.values, loss_mask.values.view(np.bool_), media)


def is_stored(path: str | os.PathLike[str], count: int) -> bool:
    """Return true if a file holds ``count`` samples, byte for byte as written, and their media are unchanged."""
    try:
        file = _open(path)
        if len(file.offsets) != count + 1:
            return False
        texts = [] if file.media is None else [file.media.row(row).tobytes() for row in range(count)]
        return all(item.is_unchanged for text in texts for item in attachment_store().from_json(text))
    except (FileNotFoundError, BadAttachmentError, BrimfulError):
        return False


class StoredSamples:
    """Encoded samples by sample id, from the files of several blocks.

    Picklable: a file is opened when it is first read.
    """

    def __init__(self, parts: Sequence[tuple[int, str]]) -> None:
        """``parts``: the first sample id of each file, ascending, and its path."""
        self._first_ids = [first_id for first_id, _ in parts]
        self._paths = [path for _, path in parts]
        self._open_files: OrderedDict[int, _File] = OrderedDict()
        self._checked: set[int] = set()

    def __reduce__(self) -> tuple[object, ...]:
        return StoredSamples, (list(zip(self._first_ids, self._paths, strict=True)),)

    def __getitem__(self, sample_id: int) -> EncodedSample:
        return self.read([sample_id])[0]

    def read(self, sample_ids: Sequence[int]) -> list[EncodedSample]:
        """Return samples, as views; bytes of media that came with rows are not among them."""
        file_indices = np.searchsorted(self._first_ids, sample_ids, side="right") - 1
        samples = []
        # One lookup per sample: this is the inner loop of writing packs, whose samples come in random order.
        for sample_id, file_index in zip(sample_ids, file_indices.tolist(), strict=True):
            offsets, ids, loss_mask, media = self._open_files.get(file_index) or self._open_file(file_index)
            row = sample_id - self._first_ids[file_index]
            span = slice(offsets[row], offsets[row + 1])
            items = () if media is None else attachment_store().from_json(media.row(row).tobytes())
            samples.append(EncodedSample(ids[span], loss_mask[span], items))
        return samples

    def _open_file(self, file_index: int) -> _File:
        try:
            file = _open(self._paths[file_index], checked=file_index not in self._checked)
        except CorruptFileError as error:
            raise CorruptFileError(f"{error.message}: run the same command again, which rebuilds this file") from error
        self._checked.add(file_index)
        self._open_files[file_index] = file
        # A process may map a limited number of files; the checksum of a reopened file is known to be right.
        if len(self._open_files) > _MAX_OPEN_FILES:
            self._open_files.popitem(last=False)
        return file
