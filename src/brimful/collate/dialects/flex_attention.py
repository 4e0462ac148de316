"""What FlexAttention of PyTorch takes: document ids, and a block mask made from the boundaries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask

from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import beside_tokens, row, text_or_mrope
from brimful.typing import CuSeqlens

__all__ = ["block_mask_of", "document_mask_mod", "to_flex_attention"]

_MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]


def to_flex_attention(batch: PackedBatch) -> dict[str, Any]:
    """One row of T tokens, and its mask; labels are not shifted.

    ==========================================  =====================================================
    ``input_ids, labels``                       ``int64[1, T]``
    ``position_ids``                            ``int64[1, T]``; with mRoPE ``int64[4, 1, T]``
    ``document_ids``                            ``int32[T]``: the segment of each token, the padding has its own
    ``block_mask``                              ``BlockMask`` over ``(1, 1, T, T)``: causal inside of segments
    ``loss_weights``                            ``float32[1, T]``, only if the batch has any
    ==========================================  =====================================================

    A fixed T (``pad_to``) saves compiling again. In workers of a loader use ``document_ids`` alone, and make the mask
    with ``block_mask_of`` on the device: a mask holds a function, which no queue carries.
    """
    documents = torch.from_numpy(batch.segment_index)
    return {
        "input_ids": row(batch.input_ids),
        "labels": row(batch.labels),
        "position_ids": torch.from_numpy(text_or_mrope(batch)),
        "document_ids": documents,
        "block_mask": block_mask_of(batch.cu_seqlens, documents),
        **beside_tokens(batch),
    }


def document_mask_mod(document_ids: torch.Tensor) -> _MaskMod:
    """``mask_mod``: a token sees what stands before it in its own segment, and itself."""

    def mask_mod(b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor) -> torch.Tensor:
        return (document_ids[q_idx] == document_ids[kv_idx]) & (q_idx >= kv_idx)

    return mask_mod


def block_mask_of(cu_seqlens: CuSeqlens, document_ids: torch.Tensor, *, block_size: int = 128) -> BlockMask:
    """The mask that ``create_block_mask`` would make, without looking at all T² pairs.

    ::

        cu_seqlens 0 5 8, blocks of 2      kv    0  1  2  3
        q block 0 (tokens 0 1)                   p
                1 (2 3)                          f  p             f: all pairs of the block see each other
                2 (4 5)                          p  p  p          p: some do, the mask_mod decides
                3 (6 7)                                p  p       nothing: left out

    The blocks that a row of blocks sees are those from the beginning of the segment of its first token. A block left
    of the diagonal is full if one segment holds all of both.

    Args:
        cu_seqlens: ``int32[S + 1]`` in host memory.
        document_ids: ``int32[T]``, on the device where the mask is wanted.
        block_size: tokens of a block.
    """
    size = int(cu_seqlens[-1])
    count = -(-size // block_size)
    first = np.arange(count, dtype=np.int64) * block_size
    last = np.minimum(first + block_size, size) - 1
    owner = np.searchsorted(cu_seqlens, first, side="right") - 1
    begin = cu_seqlens[owner].astype(np.int64)
    whole = (last < cu_seqlens[owner + 1]) & (last - first == block_size - 1)
    column = np.arange(count)
    seen = (column >= (begin // block_size)[:, None]) & (column <= column[:, None])
    full = seen & (column < column[:, None]) & whole[:, None] & (column * block_size >= begin[:, None])
    return BlockMask.from_kv_blocks(
        *_listed(seen & ~full, document_ids.device),
        *_listed(full, document_ids.device),
        BLOCK_SIZE=block_size,
        mask_mod=document_mask_mod(document_ids),
        seq_lengths=(size, size),
    )


def _listed(blocks: np.ndarray[Any, Any], device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """How many blocks are set in each row, and which; ``int32[1, 1, n]`` and ``int32[1, 1, n, n]``, others last."""
    counts = blocks.sum(axis=1, dtype=np.int32)
    listed = np.argsort(~blocks, axis=1, kind="stable").astype(np.int32)
    return torch.from_numpy(counts).to(device)[None, None], torch.from_numpy(listed).to(device)[None, None]
