"""Where tokens of a batch lie. Boundaries are written here, once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from brimful.collate.batch import PackedBatch
from brimful.collate.media import Float32Array, PackExtras, join_media
from brimful.collate.padding import Padding
from brimful.errors import CollateError, SettingsError
from brimful.shards import Pack
from brimful.typing import IGNORE_INDEX, AnyIntArray, CuSeqlens, Int32Array, Int64Array

__all__ = ["cu_seqlens_of_mask", "indexed_mask", "lay_out", "policy", "segment_index"]

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
    real = _real_lengths(packs)
    tokens = sum([len(pack.input_ids) for pack in packs])
    boundaries = _boundaries(packs, real, tokens, padding)
    padded = padding.segment_multiple_of > 1 or len(boundaries) > len(real) + 1
    lengths = boundaries[1:] - boundaries[:-1] if padded else real
    segments, size = len(real), int(boundaries[-1])
    gaps = int(boundaries[segments]) != tokens

    # Tokens first lie without gaps, which are rare; `size` leaves room for the padding at the end.
    input_ids = np.empty(tokens if gaps else size, dtype=np.int64)
    labels = np.empty(len(input_ids), dtype=np.int64)
    labels.fill(IGNORE_INDEX)
    at = num_loss_tokens = 0
    recount = False
    for pack in packs:
        stop = at + len(pack.input_ids)
        input_ids[at:stop] = pack.input_ids
        np.copyto(labels[at:stop], pack.input_ids, where=pack.loss_mask)  # casting copies runs of targets at once
        num_loss_tokens += int(np.count_nonzero(pack.loss_mask))
        recount |= stop > at and bool(pack.loss_mask.take(pack.cu_seqlens[:-1], mode="clip").any())
        at = stop
    places = None
    if gaps:
        starts = np.cumsum(real, dtype=np.int64) - real
        places = np.arange(tokens) + np.repeat(boundaries[:segments] - starts, real)
        input_ids, labels = _spread(input_ids, places, size, pad_token_id), _spread(labels, places, size, IGNORE_INDEX)
    else:
        input_ids[tokens:] = pad_token_id
    # The first token of a segment has nothing before it that may predict it, whatever the pack says.
    first = boundaries[:segments]
    if first[-1] == size:  # empty segments at the end
        first = first[first < size]
    labels[first] = IGNORE_INDEX
    if recount:  # some pack said otherwise
        num_loss_tokens = int(np.count_nonzero(labels != IGNORE_INDEX))
    position_ids = boundaries[:-1].astype(np.int64).repeat(lengths)
    np.subtract(_numbers(position_start + size)[position_start:], position_ids, out=position_ids)

    real_lengths = real
    if len(lengths) > segments:
        real_lengths = np.zeros(len(lengths), dtype=np.int32)
        real_lengths[:segments] = real
    batch = PackedBatch(
        input_ids=input_ids,
        labels=labels,
        position_ids=position_ids,
        cu_seqlens=boundaries,
        num_segments=segments,
        sample_ids=packs[0].sample_ids if len(packs) == 1 else np.concatenate([pack.sample_ids for pack in packs]),
        num_loss_tokens=num_loss_tokens,
        real_lengths=real_lengths,
        max_seqlen=_longest(packs, lengths, padding),
    )
    return batch if extras is None else _with_extras(batch, packs, extras, places)


@lru_cache(maxsize=8)
def _numbers(count: int) -> Int64Array:
    """0 to count - 1, made once for each length of row. Not to be written to."""
    numbers = np.arange(count, dtype=np.int64)
    numbers.flags.writeable = False
    return numbers


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


def segment_index(batch: PackedBatch) -> Int32Array:
    """``int32[T]``: number of the segment that each token belongs to; the padding has a number of its own."""
    lengths = batch.lengths
    return np.arange(len(lengths), dtype=np.int32).repeat(lengths)


def indexed_mask(batch: PackedBatch) -> Int32Array:
    """``int32[T]``: 1 in the first segment, 2 in the second and so on; 0 at all padding."""
    index = segment_index(batch) + np.int32(1)
    index[batch.padding_mask] = 0
    return index


def cu_seqlens_of_mask(mask: AnyIntArray) -> CuSeqlens:
    """Boundaries of a row that carries the number of its segment at every token: ``int32[segments + 1]``.

    >>> cu_seqlens_of_mask(np.array([1, 1, 2, 2, 2, 3, 3, 4, 5, 5, 5, 0, 0])).tolist()
    [0, 2, 5, 7, 8, 11, 13]
    """
    inner = np.flatnonzero(mask[1:] != mask[:-1]) + 1
    return np.concatenate([[0], inner, [len(mask)]]).astype(np.int32)


def _real_lengths(packs: Sequence[Pack]) -> Int32Array:
    if len(packs) == 1:
        return packs[0].cu_seqlens[1:] - packs[0].cu_seqlens[:-1]
    return np.concatenate([pack.cu_seqlens[1:] - pack.cu_seqlens[:-1] for pack in packs])


def _boundaries(packs: Sequence[Pack], real: Int32Array, tokens: int, padding: Padding) -> CuSeqlens:
    """Real segments, the padding at the end if there is any, then empty segments up to the number asked for."""
    unit = padding.segment_multiple_of
    lengths = padding.padded(real)
    total = tokens if unit == 1 else int(lengths.sum(dtype=np.int64))
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
    needed = len(real) + (size > total)
    count = needed if padding.num_segments is None else padding.num_segments
    if count < needed:
        raise CollateError(
            f"num_segments is {count:,} and the batch has {needed:,}, the padding included (samples {_names(packs)}): "
            f"raise num_segments, or limit the samples of a pack"
        )
    boundaries = np.empty(count + 1, dtype=np.int32)
    if unit == 1 and len(packs) == 1:
        boundaries[: len(real) + 1] = packs[0].cu_seqlens
    else:
        boundaries[0] = 0
        np.cumsum(lengths, dtype=np.int32, out=boundaries[1 : len(real) + 1])
    boundaries[len(real) + 1 :] = size
    return boundaries


def _longest(packs: Sequence[Pack], lengths: Int32Array, padding: Padding) -> int:
    tokens = int(lengths.max())
    longest = padding.longest(tokens)
    if longest < tokens:
        number = int(lengths.argmax())
        ids = np.concatenate([pack.sample_ids for pack in packs])
        what = f"sample {ids[number]}" if number < len(ids) else "the padding at the end"
        raise CollateError(
            f"max_seqlen is {longest:,} and {what} has {tokens:,} tokens: kernels would leave out the rest; raise "
            f"max_seqlen, or use max_seqlen='bucket'"
        )
    return longest


def _names(packs: Sequence[Pack]) -> str:
    return ", ".join(str(sample_id) for pack in packs for sample_id in pack.sample_ids[:3].tolist()) + "…"


def _spread(
    values: npt.NDArray[np.int64], places: npt.NDArray[np.int64], size: int, fill: int
) -> npt.NDArray[np.int64]:
    """Tokens without gaps to their places in a row with gaps."""
    row = np.full(size, fill, dtype=np.int64)
    row[places] = values
    return row


def _with_extras(
    batch: PackedBatch, packs: Sequence[Pack], extras: Sequence[PackExtras | None], places: Int64Array | None
) -> PackedBatch:
    """The batch with what its packs carry beside tokens."""
    known = [extra if extra is not None else PackExtras() for extra in extras]
    assert len(known) == len(packs)
    where = places if places is not None else np.arange(batch.num_tokens)
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
