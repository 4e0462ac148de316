"""One pack: the tokens of several samples in one row, and where each begins; and many packs as flat
columns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Protocol

import numpy as np

from brimful.base.attachment import BadAttachmentError, attachments_of_segment
from brimful.base.ragged import offsets_of
from brimful.base.sharing import Sharing, wing_of
from brimful.base.tables import Ragged
from brimful.base.typing import (
    IGNORE_INDEX,
    TARGET_MASKS,
    AnyIntArray,
    CuSeqlens,
    Fingerprint,
    Labels,
    Lengths,
    LossMask,
    Offsets,
    SampleIds,
    TokenIds,
)
from brimful.errors import CollateError


class _NoDictionary:
    """Refusal of ``vars(pack)`` and ``pack[key]``, with which other collators look up the keys of a
    sample.
    """

    __slots__ = ()

    @property
    def __dict__(self) -> dict[str, Any]:  # type: ignore[override]
        raise _wrong_collator()

    def __getitem__(self, key: str) -> Any:
        raise _wrong_collator()


def _wrong_collator() -> CollateError:
    return CollateError(
        "packs came to a collator that does not support them, such as a trainer's default: give "
        "the trainer data_collator=PackCollator(), or a DataLoader collate_fn=PackCollator()"
    )


class SharedPack(Sharing, Protocol):
    """Sharing of a pack."""

    @property
    def num_samples(self) -> int:
        """Samples of the pack."""

    @property
    def num_targets(self) -> int:
        """Targets of all samples."""

    def positions(self, cu_seqlens: AnyIntArray) -> Ragged:
        """Return the place in the pack of each token of each sample: one row for each sample."""

    def without_targets(self) -> SharedPack:
        """Return the same sharing of samples without targets."""


@dataclass(frozen=True, slots=True)
class Pack(_NoDictionary):
    """Segments that share one sequence. Arrays are read-only views if the pack comes from a file.

    Attributes:
        input_ids: ``int32[num_tokens]``.
        loss_mask: ``bool[num_tokens]``, true where the token is a target of any sample; never for
            the first of a sample.
        cu_seqlens: ``int32[num_segments + 1]``, starts of the segments, and the end.
        sample_ids: ``int64[num_segments]``, the sample of each segment; -1 in a filler pack without
            loss.
        starts: ``int32[num_segments]``, first token of the sample in the segment; 0 unless the
            sample was cut.
        attachments: what belongs to some of its tokens, such as images, in their order.
        sharing: how the segments make samples that share tokens; None if each segment is a sample,
            or a part of one.

    >>> pack = assemble_pack([np.array([5, 6, 7]), np.array([8, 9])], [np.ones(3, bool), np.ones(2, bool)], [4, 2])
    >>> pack.labels.tolist(), pack.cu_seqlens.tolist(), len(pack)
    ([-100, 6, 7, -100, 9], [0, 3, 5], 5)
    """

    input_ids: TokenIds
    loss_mask: LossMask
    cu_seqlens: CuSeqlens
    sample_ids: SampleIds
    starts: TokenIds
    attachments: Sequence[Any] = ()
    sharing: SharedPack | None = None

    def __len__(self) -> int:
        return len(self.input_ids)

    @property
    def num_segments(self) -> int:
        """Number of segments."""
        return len(self.sample_ids)

    @property
    def num_samples(self) -> int:
        """Number of samples, where parts of a sample that was cut count one by one."""
        return self.num_segments if self.sharing is None else self.sharing.num_samples

    @property
    def labels(self) -> Labels:
        """Labels, ``int64[num_tokens]``: the token of a target, else ``IGNORE_INDEX``. Not shifted;
        a new array.
        """
        return np.where(self.loss_mask, self.input_ids, np.int64(IGNORE_INDEX))

    @property
    def num_loss_tokens(self) -> int:
        """Number of tokens that are targets of the loss."""
        return int(np.count_nonzero(self.loss_mask))

    def segment(self, index: int) -> TokenIds:
        """Return the tokens of one segment."""
        return self.input_ids[self.cu_seqlens[index] : self.cu_seqlens[index + 1]]

    def take(self, segments: Sequence[int]) -> Pack:
        """Return a pack of some of the segments, in this order, with their attachments.

        >>> pack = assemble_pack([np.array([5, 6, 7]), np.array([8, 9])], [np.ones(3, bool), np.ones(2, bool)], [4, 2])
        >>> pack.take([1]).labels.tolist(), pack.take([1]).sample_ids.tolist()
        ([-100, 9], [2])
        """
        assert self.sharing is None, "a segment is not a sample: take it from flat()"
        edges, starts = self.cu_seqlens.tolist(), self.starts.tolist()
        spans = [slice(edges[segment], edges[segment + 1]) for segment in segments]
        # ``assemble_pack`` takes the attachments of whole samples, in which a segment begins at its
        # start.
        attachments = [
            [
                replace(item, start=item.start - edges[segment] + starts[segment])
                for item in self.attachments
                if item.segment == segment
            ]
            for segment in segments
        ]
        return assemble_pack(
            [self.input_ids[span] for span in spans],
            [self.loss_mask[span] for span in spans],
            self.sample_ids[list(segments)],
            self.starts[list(segments)],
            attachments,
        )

    def flat(self) -> Pack:
        """Return the samples one after the other, each whole; a pack that shares nothing is
        unchanged.
        """
        if self.sharing is None:
            return self
        flat: Pack = wing_of(self.sharing).flat(self)
        return flat

    def without_loss(self) -> Pack:
        """Return the same tokens and attachments without targets and samples: every id is -1. It keeps a
        rank without a pack in step with the others, in the towers too.
        """
        return replace(
            self,
            loss_mask=self.loss_mask & False,
            sample_ids=np.full_like(self.sample_ids, -1),
            sharing=None if self.sharing is None else self.sharing.without_targets(),
        )

    def __eq__(self, other: object) -> bool:
        # A tokenizer that pads a batch checks `"input_ids" in batch`, which compares each pack with
        # a string.
        if isinstance(other, str):
            raise _wrong_collator()
        if not isinstance(other, Pack):
            return NotImplemented
        arrays = (name for name in self.__slots__ if name not in ("attachments", "sharing"))
        is_equal = all(np.array_equal(getattr(self, name), getattr(other, name)) for name in arrays)
        return is_equal and self.attachments == other.attachments and self.sharing == other.sharing

    def __dir__(self) -> list[str]:
        return dir(type(self))

    def __repr__(self) -> str:
        end = f", media: {len(self.attachments)}" if self.attachments else ""
        samples = "" if self.sharing is None else f", {self.sharing}"
        return (
            f"Pack({len(self):,} tokens, {self.num_segments} segments{samples}, "
            f"{self.num_loss_tokens:,} loss tokens{end})"
        )


class PackSequence(Protocol):
    """Packs by index: a ``PackedDataset``, a ``PackStore``, or any other sequence of packs."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Pack: ...


class FingerprintedPacks(PackSequence, Protocol):
    """Sequence of packs with a fingerprint, by which a loader state rejects others."""

    @property
    def fingerprint(self) -> Fingerprint: ...


def assemble_pack(
    ids: Sequence[TokenIds],
    masks: Sequence[LossMask],
    sample_ids: Sequence[int] | SampleIds,
    starts: Sequence[int] | TokenIds | None = None,
    attachments: Sequence[Sequence[Any]] | None = None,
) -> Pack:
    """Concatenate segments into one pack. The first token of each loses its label: no token before
    it may predict it.

    Args:
        ids: tokens of each segment, none empty.
        masks: loss mask of each segment.
        sample_ids: of each segment.
        starts: first token of the sample in each segment; all 0 if None.
        attachments: of the whole sample of each segment; None without any.

    Raises:
        CollateError: a segment holds only a part of an attachment.
    """
    cu_seqlens = offsets_of([len(segment) for segment in ids]).astype(np.int32)
    loss_mask = np.concatenate(masks)
    loss_mask[cu_seqlens[:-1]] = False
    first_tokens = (
        np.zeros(len(ids), dtype=np.int32) if starts is None else np.asarray(starts, dtype=np.int32)
    )
    return Pack(
        input_ids=np.concatenate(ids).astype(np.int32, copy=False),
        loss_mask=loss_mask,
        cu_seqlens=cu_seqlens,
        sample_ids=np.asarray(sample_ids, dtype=np.int64),
        starts=first_tokens,
        attachments=placed_attachments(attachments, sample_ids, first_tokens, cu_seqlens),
    )


def placed_attachments(
    attachments: Sequence[Sequence[Any]] | None,
    sample_ids: Sequence[int] | SampleIds,
    starts: Lengths,
    cu_seqlens: CuSeqlens,
) -> tuple[Any, ...]:
    """Return the attachments of segments, placed in their pack."""
    placed: list[Any] = []
    for segment, items in enumerate(attachments or ()):
        offset = int(cu_seqlens[segment])
        length = int(cu_seqlens[segment + 1]) - offset
        try:
            placed += attachments_of_segment(
                items, start=int(starts[segment]), length=length, segment=segment, offset=offset
            )
        except BadAttachmentError as error:
            raise CollateError(
                f"sample {int(sample_ids[segment])}: {error}; drop samples that are too long"
            ) from error
    return tuple(placed)


@dataclass(frozen=True)
class PackRows:
    """Concatenated packs, from which a shard is built. The constructor clears the mask of each
    segment's first token.

    Attributes:
        input_ids: ``int32[num_tokens]`` of all packs.
        loss_mask: ``bool[num_tokens]``; changed in place: false for the first token of every
            segment, which has no context.
        lengths: ``int32[num_segments]``.
        sample_ids: ``int64[num_segments]``.
        starts: ``int32[num_segments]``.
        segments: ``int64[num_packs + 1]``, first segment of each pack, and the end.
        attachments: of each pack; None if the packs of this store have none.
        sharings: of each pack; None if the segments of this store are samples, or parts of them.

    >>> rows = PackRows(np.array([5, 6, 7], np.int32), np.ones(3, bool), np.array([2, 1], np.int32),
    ...                 np.array([4, 2]), np.zeros(2, np.int32), np.array([0, 2]))
    >>> rows.loss_mask.tolist(), rows.tokens.tolist()
    ([False, True, False], [0, 3])
    """

    input_ids: TokenIds
    loss_mask: LossMask
    lengths: Lengths
    sample_ids: SampleIds
    starts: Lengths
    segments: Offsets
    attachments: Sequence[Sequence[Any]] | None = None
    sharings: Sequence[SharedPack] | None = None

    @classmethod
    def of_packs(
        cls, packs: Sequence[Pack], attachments: Sequence[Sequence[Any]] | None = None
    ) -> PackRows:
        """Return the rows of some packs, copied, with these attachments in place of their own."""
        return cls(
            np.concatenate([pack.input_ids for pack in packs]),
            np.concatenate([pack.loss_mask for pack in packs]),
            np.concatenate([np.diff(pack.cu_seqlens) for pack in packs]),
            np.concatenate([pack.sample_ids for pack in packs]),
            np.concatenate([pack.starts for pack in packs]),
            offsets_of([pack.num_segments for pack in packs]),
            attachments,
            [pack.sharing for pack in packs if pack.sharing is not None] or None,
        )

    def __post_init__(self) -> None:
        assert self._token_offsets[-1] == len(self.input_ids)
        assert self.sharings is None or len(self.sharings) == len(self)
        # A token is predicted from the tokens before it in its segment, and the first has none,
        # unless another segment comes before it in its sample.
        if self.sharings is None:
            self.loss_mask[self._token_offsets[:-1]] = False

    @cached_property
    def _token_offsets(self) -> Offsets:
        """``int64[num_segments + 1]``, first token of each segment, and the end."""
        return offsets_of(self.lengths)

    @property
    def tokens(self) -> Offsets:
        """``int64[num_packs + 1]``, first token of each pack, and the end."""
        return self._token_offsets[self.segments]

    def __len__(self) -> int:
        return len(self.segments) - 1


class PlainPack(list[Mapping[str, Any]]):
    """Rows of a data set in one sequence, each with ``input_ids`` and further outputs of its
    encoder: labels, pixels.

    ``PackCollator`` joins them; so do other collators that take a list of rows.

    Attributes:
        sample_ids: of the rows, as in sources and messages.
    """

    def __init__(self, rows: Sequence[Mapping[str, Any]], sample_ids: Sequence[int]) -> None:
        super().__init__(rows)
        self.sample_ids = list(sample_ids)

    def without_loss(self) -> PlainPack:
        """Return the same rows without targets and samples: every id is -1."""
        rows = [
            {name: value for name, value in row.items() if name not in TARGET_MASKS} for row in self
        ]
        for row in rows:
            labels = np.full(len(row["input_ids"]), IGNORE_INDEX)
            # In the form of the other rows, which a collator of tensors or lists may concatenate.
            form = row.get("labels", row["input_ids"])
            row["labels"] = (
                form.new_tensor(labels)
                if hasattr(form, "new_tensor")
                else labels
                if isinstance(form, np.ndarray)
                else labels.tolist()
            )
        return PlainPack(rows, [-1] * len(rows))
