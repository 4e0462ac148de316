"""Batch of LLaMA-Factory with ``neat_packing``: the attention mask holds segment numbers."""

from collections.abc import Sequence
from typing import Any

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import join_rows, stack
from brimful.collate.layout import indexed_mask

_NO_ITEM = 2**32
"""Segment number that LLaMA-Factory writes for a kind of media without an item in the row."""


def to_llama_factory(rows: Sequence[PackedBatch]) -> dict[str, Any]:
    """Convert B packs to B rows of S tokens; labels are not shifted.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[B, S]``
    ``attention_mask``                          ``int32[B, S]``: 1, 2, … for the segments, 0 for padding
    ``position_ids``                            ``int64[B, S]``; with mRoPE ``int64[4, B, S]``
    ``packing_params``                          for each row the boundaries, the padding, and the segment of each
                                                image, video and audio
    ``loss_weights``                            ``float32[B, S]``, only if the batch has any
    ==========================================  =====================================================

    Every row ends in at least one token of padding, as in LLaMA-Factory (``cutoff_len + 1``), because some attention
    implementations drop a mask without zeros. ``pad_to`` is ``cutoff_len``.
    """
    return {
        **join_rows(rows, mrope_rows=4),
        "attention_mask": stack([indexed_mask(batch) for batch in rows]),
        "packing_params": [_params(batch) for batch in rows],
    }


def _params(batch: PackedBatch) -> dict[str, Any]:
    owners = {item.kind: item.segments.tolist() for item in batch.media}
    return {
        "sequence_boundaries": batch.cu_seqlens.tolist(),
        **{f"{kind}_subseq_ids": owners.get(kind) or [_NO_ITEM] for kind in ("image", "video", "audio")},
        "right_padding_length": batch.tail_length,
    }
