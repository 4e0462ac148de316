"""Tokens with the mask of their targets: of one sample, of a batch in flat arrays, and stored.

A job that measures and then writes tokenizes once: measuring stores its tokens, one file for each
block of the source, and writing reads them. The files are temporary and belong to one job. Each
process compares a file with its checksum
when it first opens it: packs are made from these files, and no later step would notice wrong
tokens.

Media are kept by their places among the tokens, with the state in which each file was measured
(``Medium.stamp``). Bytes that came with a row are not copied: read them from the row.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from brimful.base.attachment import BadAttachmentError, attachment_store
from brimful.base.ragged import offsets_of
from brimful.base.tables import Ragged, open_table, write_table
from brimful.base.typing import (
    IGNORE_INDEX,
    AnyArray,
    AnyPath,
    Int64Array,
    Labels,
    Lengths,
    LossMask,
    TokenIds,
)
from brimful.base.wording import counted
from brimful.errors import BadSampleError, BrimfulError, CorruptFileError


@dataclass(frozen=True, slots=True)
class EncodedSample:
    """Tokens of one sample.

    Attributes:
        input_ids: ``int32[length]``.
        loss_mask: ``bool[length]``, true where the token itself is a target of the loss.
        attachments: what belongs to some of its tokens, such as images, in their order.

    >>> sample = EncodedSample(np.array([5, 6, 7], np.int32), np.array([False, True, True]))
    >>> len(sample), sample.labels.tolist()
    (3, [-100, 6, 7])
    """

    input_ids: TokenIds
    loss_mask: LossMask
    attachments: tuple[Any, ...] = ()

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def labels(self) -> Labels:
        """``int64[length]``: the token where it is a target, else ``IGNORE_INDEX``. Not shifted."""
        return np.where(self.loss_mask, self.input_ids, IGNORE_INDEX).astype(np.int64)

    def difference(self, reference: EncodedSample) -> str:
        """Describe the first token or target that differs from a reference of equal length; empty
        if none does.

        >>> ids = np.array([5, 6], np.int32)
        >>> one, other = (EncodedSample(ids, np.array(mask)) for mask in ([False, True], [False, False]))
        >>> one.difference(other), one.difference(one)
        ('target 1 is True, and False by the reference', '')
        """
        for name, ours, theirs in (
            ("token", self.input_ids, reference.input_ids),
            ("target", self.loss_mask, reference.loss_mask),
        ):
            if not np.array_equal(ours, theirs):
                index = int(np.flatnonzero(ours != theirs)[0])
                return f"{name} {index} is {ours[index]}, and {theirs[index]} by the reference"
        return ""

    def __repr__(self) -> str:
        targets = int(np.count_nonzero(self.loss_mask))
        end = f", media: {len(self.attachments)})" if self.attachments else ")"
        return f"EncodedSample({counted(len(self), 'token')}, {counted(targets, 'loss token')}{end}"


MeasuredLengths: TypeAlias = tuple[Lengths, list[BadSampleError]]
"""``int32[num_samples]`` numbers of tokens, -1 for a sample with an error; and the errors, in
sample order.
"""


def joined_rows(rows: Sequence[AnyArray], dtype: npt.DTypeLike) -> Ragged:
    """Return rows as one array with offsets."""
    return Ragged(np.concatenate([np.empty(0, dtype), *rows]), offsets_of([*map(len, rows)]))


@dataclass(frozen=True)
class EncodedBatch:
    """Tokens of several samples.

    Attributes:
        ids: ``int32``; row ``i`` holds the tokens of sample ``i``, none if it cannot be encoded.
        loss_mask: ``bool[len(ids.values)]``, true where a token is a target of the loss.
        errors: the error of each sample that cannot be encoded, by its index.
        attachments: of each sample that has any, by its index.

    >>> batch = EncodedBatch.of([EncodedSample(np.array([5, 6], np.int32), np.array([False, True]))])
    >>> batch.lengths.tolist(), batch.samples()[0].labels.tolist()
    ([2], [-100, 6])
    """

    ids: Ragged
    loss_mask: LossMask
    errors: Mapping[int, BadSampleError]
    attachments: Mapping[int, tuple[Any, ...]] = field(default_factory=dict)

    @classmethod
    def of(cls, results: Sequence[EncodedSample | BadSampleError]) -> EncodedBatch:
        """Concatenate samples."""
        nothing = EncodedSample(np.empty(0, dtype=np.int32), np.empty(0, dtype=bool))
        samples = [nothing if isinstance(result, BadSampleError) else result for result in results]
        return cls(
            joined_rows([sample.input_ids for sample in samples], np.int32),
            joined_rows([sample.loss_mask for sample in samples], bool).values,
            {
                index: result
                for index, result in enumerate(results)
                if isinstance(result, BadSampleError)
            },
            {
                index: sample.attachments
                for index, sample in enumerate(samples)
                if sample.attachments
            },
        )

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def lengths(self) -> Int64Array:
        """Number of tokens of each sample, 0 for one that cannot be encoded."""
        return np.diff(self.ids.offsets)

    @property
    def measured(self) -> MeasuredLengths:
        """Lengths and errors, as ``Encoder.lengths`` returns them."""
        lengths = self.lengths.astype(np.int32)
        lengths[list(self.errors)] = -1
        return lengths, [self.errors[index] for index in sorted(self.errors)]

    def samples(self) -> list[EncodedSample | BadSampleError]:
        """Return the samples one by one, as views; an error takes the place of one that cannot be
        encoded.
        """
        values, bounds = self.ids.values, self.ids.offsets.tolist()
        return [
            self.errors[index]
            if index in self.errors
            else EncodedSample(
                values[start:stop], self.loss_mask[start:stop], self.attachments.get(index, ())
            )
            for index, (start, stop) in enumerate(pairwise(bounds))
        ]


_MAX_OPEN_FILES = 512


def write_stored(
    path: AnyPath,
    ids: Ragged,
    loss_mask: LossMask,
    attachments: Mapping[int, Sequence[Any]] | None = None,
) -> None:
    """Write the samples of one block.

    Args:
        ids: ``int32``, a row for each sample; empty for a rejected one.
        loss_mask: ``bool[len(ids.values)]``.
        attachments: of each row that has any.
    """
    columns = {"ids": ids, "loss_mask": Ragged(loss_mask.view(np.uint8), ids.offsets)}
    if attachments:
        texts = [
            attachment_store().to_json(attachments[row]) if row in attachments else b""
            for row in range(len(ids))
        ]
        columns[_ATTACHMENTS] = Ragged(
            np.frombuffer(b"".join(texts), dtype=np.uint8), offsets_of([*map(len, texts)])
        )
    write_table(path, columns, {"kind": "encoded"})


_ATTACHMENTS = "media"
"""Column of attachments as JSON."""


class _File(NamedTuple):
    """The samples of one file; attachments as JSON, None if no sample has any."""

    offsets: list[int]
    ids: TokenIds
    loss_mask: LossMask
    attachments: Ragged | None


def _open(path: AnyPath, *, checked: bool = True) -> _File:
    """Map a file; its columns are compared with their checksums if ``checked``."""
    table = open_table(path)
    ids, loss_mask = (table.ragged(name, checked=checked) for name in ("ids", "loss_mask"))
    texts = table.ragged(_ATTACHMENTS, checked=checked) if _ATTACHMENTS in table else None
    return _File(ids.offsets.tolist(), ids.values, loss_mask.values.view(np.bool_), texts)


def is_stored(path: AnyPath, count: int) -> bool:
    """Return true if a file holds ``count`` samples, byte for byte as written, and their attachments
    are unchanged.
    """
    try:
        file = _open(path)
        if len(file.offsets) != count + 1:
            return False
        texts = (
            []
            if file.attachments is None
            else [file.attachments.row(row).tobytes() for row in range(count)]
        )
        return all(
            item.is_unchanged for text in texts for item in attachment_store().from_json(text)
        )
    except (FileNotFoundError, BadAttachmentError, BrimfulError):
        return False


class StoredSamples:
    """Encoded samples by sample id, from the files of several blocks.

    Picklable: a file is opened when it is first read.
    """

    def __init__(self, files: Sequence[tuple[int, str]]) -> None:
        """``parts``: the first sample id of each file, ascending, and its path."""
        self._first_ids = [first_id for first_id, _ in files]
        self._paths = [path for _, path in files]
        self._open_files: OrderedDict[int, _File] = OrderedDict()
        self._checked: set[int] = set()

    def __reduce__(self) -> tuple[object, ...]:
        return StoredSamples, (list(zip(self._first_ids, self._paths, strict=True)),)

    def __getitem__(self, sample_id: int) -> EncodedSample:
        return self.read([sample_id])[0]

    def read(self, sample_ids: Sequence[int]) -> list[EncodedSample]:
        """Return samples, as views; bytes of attachments that came with rows are not among them."""
        file_indices = np.searchsorted(self._first_ids, sample_ids, side="right") - 1
        samples = []
        # One lookup per sample: this is the inner loop of writing packs, whose samples come in
        # random order.
        for sample_id, file_index in zip(sample_ids, file_indices.tolist(), strict=True):
            offsets, ids, loss_mask, texts = self._open_files.get(file_index) or self._open_file(
                file_index
            )
            row = sample_id - self._first_ids[file_index]
            span = slice(offsets[row], offsets[row + 1])
            items = () if texts is None else attachment_store().from_json(texts.row(row).tobytes())
            samples.append(EncodedSample(ids[span], loss_mask[span], items))
        return samples

    def tokens(self, sample_ids: Int64Array) -> Ragged:
        """Return the tokens of samples, ``int32``, in one array; many neighbors are one slice."""
        file_indices = np.searchsorted(self._first_ids, sample_ids, side="right") - 1
        is_next = (np.diff(sample_ids) == 1) & (np.diff(file_indices) == 0)
        pieces, sizes = [np.empty(0, dtype=np.int32)], [np.empty(0, dtype=np.int64)]
        edges = [0, *(np.flatnonzero(~is_next) + 1).tolist(), len(sample_ids)]
        for first, stop in pairwise(edges if len(sample_ids) else ()):
            index = int(file_indices[first])
            file = self._open_files.get(index) or self._open_file(index)
            row = int(sample_ids[first]) - self._first_ids[index]
            offsets = file.offsets[row : row + stop - first + 1]
            pieces.append(file.ids[offsets[0] : offsets[-1]])
            sizes.append(np.diff(offsets))
        return Ragged(np.concatenate(pieces), offsets_of(np.concatenate(sizes)))

    def _open_file(self, file_index: int) -> _File:
        try:
            file = _open(self._paths[file_index], checked=file_index not in self._checked)
        except CorruptFileError as error:
            raise CorruptFileError(
                f"{error.message}: run the same command again, which rebuilds this file"
            ) from error
        self._checked.add(file_index)
        self._open_files[file_index] = file
        # A process may map a limited number of files; the checksum of a reopened file is known to
        # be right.
        if len(self._open_files) > _MAX_OPEN_FILES:
            self._open_files.popitem(last=False)
        return file
