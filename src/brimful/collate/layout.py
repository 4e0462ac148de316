"""Layout of packs in one row: the only code that makes boundaries."""

from collections.abc import Sequence

import numpy as np

from brimful.base.sharing import wing_of
from brimful.base.typing import IGNORE_INDEX, Int32Array
from brimful.collate.batch import PackedBatch
from brimful.collate.extras import PackExtras, names_of, with_extras
from brimful.collate.padding import Padding
from brimful.collate.row_writer import RowArrays, writer
from brimful.errors import CollateError
from brimful.store.shards import Pack

_NO_PADDING = Padding()


def lay_out(
    packs: Sequence[Pack],
    *,
    pad_token_id: int = 0,
    padding: Padding = _NO_PADDING,
    position_start: int = 0,
    extras: Sequence[PackExtras | None] | None = None,
) -> PackedBatch:
    """Flatten packs into one row, and pad it according to the policy.

    ::

        packs         a a a a | b b          Padding(to=8)
        input_ids     a a a a   b b   0 0
        position_ids  0 1 2 3   0 1   0 1
        cu_seqlens    0         4     6   8        the padding is its own segment

    The packs are not changed.

    Args:
        packs: at least one.
        pad_token_id: token of the padding.
        padding: the padding policy.
        position_start: position of the first token of a segment, such as 2 for RoBERTa.
        extras: extras of each pack, such as its media.

    Raises:
        CollateError: no packs; packs that do not fit the policy; or extras that only some packs
            have.
    """
    if not packs:
        raise CollateError("a batch needs at least one pack and got none")
    num_segments, num_all_segments, size = _row_size(packs, padding)
    row = RowArrays.empty(
        num_all_segments, size, padding.segment_multiple_of, pad_token_id, position_start
    )
    write, (input_ids, labels, positions), (boundaries, real_lengths) = (
        writer(),
        row.tokens,
        row.segments,
    )
    # The writer fills every array up to the end of the current pack, so nothing is written twice.
    first_segment = end = num_loss_tokens = longest = 0
    for pack in packs:
        ids, mask, cu_seqlens = pack.input_ids, pack.loss_mask, pack.cu_seqlens
        num_targets, longest_of_pack, end = write(ids, mask, cu_seqlens, first_segment, end, row)
        if end < 0:
            raise _contradiction(pack)
        num_loss_tokens += num_targets
        longest = max(longest, longest_of_pack)
        first_segment += len(cu_seqlens) - 1
    # After the packs: the padding at the end, if any, as one segment, then empty segments.
    if num_all_segments > num_segments:
        boundaries[num_segments + 1 :] = size
        real_lengths[num_segments:] = 0
        input_ids[end:] = pad_token_id
        labels[end:] = IGNORE_INDEX
        positions[end:] = np.arange(position_start, position_start + size - end)
        row.segment_index[end:] = num_segments
        longest = max(longest, size - end)
    max_seqlen = padding.longest(longest)
    sample_ids = np.concatenate([pack.sample_ids for pack in packs])
    if max_seqlen < longest:
        segment = int(np.diff(boundaries).argmax())
        is_real = segment < len(sample_ids)
        name = f"sample {sample_ids[segment]}" if is_real else "the padding at the end"
        raise CollateError(
            f"max_seqlen is {max_seqlen:,} and {name} has {longest:,} tokens: kernels would leave "
            "out the rest; raise max_seqlen, or use max_seqlen='bucket'"
        )
    batch = PackedBatch(
        input_ids=input_ids,
        labels=labels,
        position_ids=positions,
        segment_index=row.segment_index,
        cu_seqlens=boundaries,
        num_segments=num_segments,
        sample_ids=sample_ids,
        num_loss_tokens=num_loss_tokens,
        real_lengths=real_lengths[:-1],
        max_seqlen=max_seqlen,
    )
    sharing = next((pack.sharing for pack in packs if pack.sharing is not None), None)
    if sharing is not None:
        batch = wing_of(sharing).lay_out(batch, packs)
    return batch if extras is None else with_extras(batch, packs, extras)


def indexed_mask(batch: PackedBatch) -> Int32Array:
    """Return the number of each token's segment, from 1, and 0 at all padding: ``int32[T]``."""
    index = batch.segment_index + np.int32(1)
    index[batch.padding_mask] = 0
    return index


def _row_size(packs: Sequence[Pack], padding: Padding) -> tuple[int, int, int]:
    """Count the real segments, all segments of the row, and its tokens.

    All segments are the real segments, the padding at the end, and the empty segments of a fixed
    ``num_segments``.
    """
    unit = padding.segment_multiple_of
    num_segments = num_tokens = 0
    for pack in packs:
        # The writer checks each pack before it writes it, but the row is allocated for all packs
        # before that: a pack that contradicts itself would make the row too small for the others.
        if not len(pack.cu_seqlens):
            raise _contradiction(pack)
        num_segments += len(pack.cu_seqlens) - 1
        if unit == 1:
            num_tokens += len(pack.input_ids)
            continue
        lengths = np.diff(pack.cu_seqlens)
        if (lengths < 0).any() or int(lengths.sum()) != len(pack.input_ids):
            raise _contradiction(pack)
        num_tokens += int(padding.padded(lengths).sum())
    if num_tokens == 0:
        raise CollateError(f"the packs of the batch hold no tokens (samples {names_of(packs)})")
    size = padding.row_length(num_tokens)
    if size < num_tokens:
        gaps = f" and gaps, each segment a multiple of {unit}" if unit > 1 else ""
        way_out = "; plan with lengths rounded up in the same way" if unit > 1 else ""
        raise CollateError(
            f"pad_to is {size:,} and the packs hold {num_tokens:,} tokens{gaps} (samples "
            f"{names_of(packs)}): raise pad_to to the capacity of the plan times the packs of a "
            f"micro-batch{way_out}"
        )
    required = num_segments + (size > num_tokens)
    num_all_segments = required if padding.num_segments is None else padding.num_segments
    if num_all_segments < required:
        raise CollateError(
            f"num_segments is {num_all_segments:,} and the batch has {required:,}, the padding "
            f"included (samples {names_of(packs)}): raise num_segments, or limit the samples of a "
            "pack"
        )
    return num_segments, num_all_segments, size


def _contradiction(pack: Pack) -> CollateError:
    return CollateError(
        f"the pack with samples {names_of([pack])} contradicts itself: cu_seqlens must go from 0 "
        f"to its {len(pack.input_ids):,} tokens and never back, and loss_mask has "
        f"{len(pack.loss_mask):,} entries"
    )
