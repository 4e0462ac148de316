"""Where tokens of a batch lie. Boundaries are made here, and nowhere else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.collate.batch import PackedBatch
from brimful.collate.media import Float32Array, PackExtras, join_media
from brimful.collate.padding import Padding
from brimful.collate.writing import writer
from brimful.errors import CollateError, SettingsError
from brimful.shards import Pack
from brimful.typing import IGNORE_INDEX, AnyIntArray, CuSeqlens, Int32Array, Int64Array

__all__ = ["cu_seqlens_of_mask", "indexed_mask", "lay_out", "policy"]

_NO_PADDING = Padding()


def lay_out(
    packs: Sequence[Pack],
    *,
    pad_to: int | None = None,
    pad_token_id: int = 0,
    padding: Padding | None = None,
    position_start: int = 0,
    extras: Sequence[PackExtras | None] | None = None,
) -> PackedBatch:
    """Flatten packs into one row and, if asked, fill it up.

    ::

        packs         a a a a | b b          pad_to 8
        input_ids     a a a a   b b   0 0
        position_ids  0 1 2 3   0 1   0 1
        cu_seqlens    0         4     6   8        the padding is a segment of its own

    The packs are not changed.

    Args:
        packs: at least one.
        pad_to: short for ``padding=Padding(to=…)``.
        pad_token_id: what stands in the padding.
        padding: the policy; none at all if None.
        position_start: position of the first token of a segment, such as 2 for RoBERTa.
        extras: what each pack carries beside its tokens.

    Raises:
        CollateError: no packs, or they do not fit the policy, or extras that some packs have and others lack.
    """
    if not packs:
        raise CollateError("a batch needs at least one pack and got none")
    padding = policy(pad_to, padding)
    segments, count, size = _room(packs, padding)
    boundaries, real_lengths = np.empty(count + 1, dtype=np.int32), np.empty(count, dtype=np.int32)
    input_ids, labels = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int64)
    positions, index = np.empty(size, dtype=np.int64), np.empty(size, dtype=np.int32)
    write = writer()
    first = at = num_loss_tokens = longest = 0
    for pack in packs:
        targets, most, at = write(
            pack.input_ids,
            pack.loss_mask,
            pack.cu_seqlens,
            padding.segment_multiple_of,
            first,
            at,
            pad_token_id,
            position_start,
            boundaries,
            real_lengths,
            input_ids,
            labels,
            positions,
            index,
        )
        if at < 0:
            raise _contradiction(pack)
        num_loss_tokens += targets
        longest = max(longest, most)
        first += len(pack.cu_seqlens) - 1
    if count > segments:  # the padding at the end, if there is any, then empty segments
        boundaries[segments + 1 :] = size
        real_lengths[segments:] = 0
        input_ids[at:] = pad_token_id
        labels[at:] = IGNORE_INDEX
        positions[at:] = np.arange(position_start, position_start + size - at)
        index[at:] = segments
        longest = max(longest, size - at)
    batch = PackedBatch(
        input_ids=input_ids,
        labels=labels,
        position_ids=positions,
        segment_index=index,
        cu_seqlens=boundaries,
        num_segments=segments,
        sample_ids=packs[0].sample_ids if len(packs) == 1 else np.concatenate([pack.sample_ids for pack in packs]),
        num_loss_tokens=num_loss_tokens,
        real_lengths=real_lengths,
        max_seqlen=_max_seqlen(packs, boundaries, longest, padding),
    )
    return batch if extras is None else _with_extras(batch, packs, extras)


def policy(pad_to: int | None, padding: Padding | None) -> Padding:
    """The padding policy that two ways to say it mean.

    Raises:
        SettingsError: both are given.
    """
    if pad_to is None:
        return _NO_PADDING if padding is None else padding
    if padding is not None:
        raise SettingsError(f"pad_to={pad_to} and padding={padding} contradict each other: use padding=Padding(to=…)")
    return Padding(to=pad_to)


def indexed_mask(batch: PackedBatch) -> Int32Array:
    """``int32[T]``: 1 in the first segment, 2 in the second and so on; 0 at all padding."""
    index = batch.segment_index + np.int32(1)
    index[batch.padding_mask] = 0
    return index


def cu_seqlens_of_mask(mask: AnyIntArray) -> CuSeqlens:
    """Boundaries of a row that carries the number of its segment at every token: ``int32[segments + 1]``.

    >>> cu_seqlens_of_mask(np.array([1, 1, 2, 2, 2, 3, 3, 4, 5, 5, 5, 0, 0])).tolist()
    [0, 2, 5, 7, 8, 11, 13]
    """
    inner = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    return np.concatenate([[0], inner, [len(mask)]]).astype(np.int32)


def _room(packs: Sequence[Pack], padding: Padding) -> tuple[int, int, int]:
    """Real segments, segments with the padding and the empty ones, and tokens of the row."""
    unit = padding.segment_multiple_of
    segments = total = 0
    for pack in packs:
        # The writer looks at each pack before it writes, but the room is for all: one that lies makes it too small.
        if not len(pack.cu_seqlens):
            raise _contradiction(pack)
        segments += len(pack.cu_seqlens) - 1
        if unit == 1:
            total += len(pack.input_ids)
            continue
        lengths = np.diff(pack.cu_seqlens)
        if (lengths < 0).any() or int(lengths.sum()) != len(pack.input_ids):
            raise _contradiction(pack)
        total += int(padding.padded(lengths).sum())
    if total == 0:
        raise CollateError(f"the packs of the batch hold no tokens (samples {_names(packs)})")
    size = padding.row_length(total)
    if size < total:
        gaps = f" and gaps, each segment a multiple of {unit}" if unit > 1 else ""
        way_out = "; plan with lengths rounded up in the same way" if unit > 1 else ""
        raise CollateError(
            f"pad_to is {size:,} and the packs hold {total:,} tokens{gaps} (samples {_names(packs)}): raise pad_to "
            f"to the capacity of the plan times the packs of a micro-batch{way_out}"
        )
    needed = segments + (size > total)
    count = needed if padding.num_segments is None else padding.num_segments
    if count < needed:
        raise CollateError(
            f"num_segments is {count:,} and the batch has {needed:,}, the padding included (samples {_names(packs)}): "
            f"raise num_segments, or limit the samples of a pack"
        )
    return segments, count, size


def _contradiction(pack: Pack) -> CollateError:
    return CollateError(
        f"the pack with samples {_names([pack])} contradicts itself: cu_seqlens must go from 0 to its "
        f"{len(pack.input_ids):,} tokens and never back, and loss_mask has {len(pack.loss_mask):,} entries"
    )


def _max_seqlen(packs: Sequence[Pack], boundaries: CuSeqlens, longest: int, padding: Padding) -> int:
    told = padding.longest(longest)
    if told < longest:
        number = int(np.diff(boundaries).argmax())
        ids = np.concatenate([pack.sample_ids for pack in packs])
        what = f"sample {ids[number]}" if number < len(ids) else "the padding at the end"
        raise CollateError(
            f"max_seqlen is {told:,} and {what} has {longest:,} tokens: kernels would leave out the rest; raise "
            f"max_seqlen, or use max_seqlen='bucket'"
        )
    return told


def _names(packs: Sequence[Pack]) -> str:
    return ", ".join(str(sample_id) for pack in packs for sample_id in pack.sample_ids[:3].tolist()) + "…"


def _with_extras(batch: PackedBatch, packs: Sequence[Pack], extras: Sequence[PackExtras | None]) -> PackedBatch:
    """The batch with what its packs carry beside tokens."""
    known = [extra if extra is not None else PackExtras() for extra in extras]
    assert len(known) == len(packs)
    where = np.flatnonzero(~batch.padding_mask)
    weights = _of_all(packs, [extra.loss_weights for extra in known], "loss_weights", "tokens")
    sources = _of_all(packs, [extra.source_ids for extra in known], "source_ids", "segments")
    rope = _of_all(packs, [extra.rope_positions for extra in known], "rope_positions", "tokens")
    firsts = np.cumsum([0, *(pack.num_segments for pack in packs[:-1])]).tolist()
    row: Float32Array | None = None
    if weights is not None:
        row = np.zeros(len(batch.input_ids), dtype=np.float32)
        row[where] = weights
    space: Int64Array | None = None
    if rope is not None:
        # Padding has no place in a picture: there the three rows count like text.
        space = np.repeat(batch.position_ids[None], 3, axis=0)
        space[:, where] = rope
    return replace(
        batch,
        loss_weights=row,
        source_ids=None if sources is None else sources.astype(np.int32, copy=False),
        rope_positions=space,
        media=join_media([(first, extra.media) for first, extra in zip(firsts, known, strict=True)]),
    )


def _of_all(
    packs: Sequence[Pack], arrays: Sequence[npt.NDArray[Any] | None], key: str, of: str
) -> npt.NDArray[Any] | None:
    """Arrays of all packs behind each other; None if no pack has one."""
    if all(array is None for array in arrays):
        return None
    for pack, array in zip(packs, arrays, strict=True):
        wanted = len(pack) if of == "tokens" else pack.num_segments
        if array is None:
            raise CollateError(f"sample {_names([pack])} has no {key!r} and others of the batch have: give all or none")
        if array.shape[-1] != wanted:
            raise CollateError(
                f"sample {_names([pack])}: {key!r} is for {array.shape[-1]:,} {of} and the pack has {wanted:,}"
            )
    return np.concatenate([array for array in arrays if array is not None], axis=-1)
