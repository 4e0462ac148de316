"""Batch for FlexAttention of PyTorch: document ids, and a block mask made from the boundaries."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch.nn.attention.flex_attention import BlockMask

from brimful.base.typing import BoolArray, CuSeqlens
from brimful.collate.batch import PackedBatch
from brimful.collate.dialects.tensors import other_tensors, token_row

MaskMod = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Function ``(b, h, q_idx, kv_idx)``, ``int`` each: true, ``bool``, if the query attends to the key."""


def to_flex_attention(batch: PackedBatch) -> dict[str, Any]:
    """Convert a batch to one row of T tokens and its block mask; labels are not shifted.

    A fixed T (``pad_to``) avoids recompilation. In workers of a loader use only ``document_ids``,
    and make the mask with ``block_mask_of`` on the device: a mask holds a function, which a queue
    cannot pickle. Models of Transformers take the mask as ``attention_mask``.
    """
    documents = torch.from_numpy(batch.segment_index)
    return {
        **token_row(batch),
        "document_ids": documents,
        "block_mask": block_mask_of(batch.cu_seqlens, documents),
        **other_tensors(batch),
    }


def document_mask_mod(document_ids: torch.Tensor) -> MaskMod:
    """Return a ``mask_mod`` with which a token attends to itself and to the earlier tokens of its
    segment.
    """

    def mask_mod(
        b: torch.Tensor, h: torch.Tensor, q_idx: torch.Tensor, kv_idx: torch.Tensor
    ) -> torch.Tensor:
        return (document_ids[q_idx] == document_ids[kv_idx]) & (q_idx >= kv_idx)

    return mask_mod


def block_mask_of(
    cu_seqlens: CuSeqlens, document_ids: torch.Tensor, *, block_size: int = 128
) -> BlockMask:
    """Make the same mask as ``create_block_mask`` from the boundaries, without computing all T²
    pairs.

    ::

        cu_seqlens 0 5 8, blocks of 2      kv    0  1  2  3
        q block 0 (tokens 0 1)                   p
                1 (2 3)                          f  p             f: full, all pairs are visible
                2 (4 5)                          p  p  p          p: partial, the mask_mod decides
                3 (6 7)                                p  p       empty: no pair is visible, the block is skipped

    A row of blocks attends to the blocks from the beginning of the segment of its first token up to
    the diagonal. A block before the diagonal is full if one segment contains all its keys and all
    its queries.

    Args:
        cu_seqlens: ``int32[S + 1]`` in host memory.
        document_ids: ``int32[T]``, on the device of the mask.
        block_size: tokens of a block.
    """
    size = int(cu_seqlens[-1])
    block = np.arange(-(-size // block_size), dtype=np.int64)
    first_token = block * block_size
    last_token = np.minimum(first_token + block_size, size) - 1
    segment = np.searchsorted(cu_seqlens, first_token, side="right") - 1
    segment_start = cu_seqlens[segment].astype(np.int64)
    # Rows are blocks of queries, columns are blocks of keys. The last block may be shorter, so it
    # is never full.
    is_visible = (block >= (segment_start // block_size)[:, None]) & (block <= block[:, None])
    in_one_segment = (last_token < cu_seqlens[segment + 1]) & (
        last_token - first_token == block_size - 1
    )
    is_full = (
        is_visible
        & (block < block[:, None])
        & in_one_segment[:, None]
        & (first_token >= segment_start[:, None])
    )
    return BlockMask.from_kv_blocks(
        *block_lists(is_visible & ~is_full, document_ids.device),
        *block_lists(is_full, document_ids.device),
        BLOCK_SIZE=block_size,
        mask_mod=document_mask_mod(document_ids),
        seq_lengths=(size, size),
    )


def block_lists(mask: BoolArray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the number of true blocks of each row, and the blocks of each row with the true ones
    first.

    The shapes are ``int32[1, 1, n]`` and ``int32[1, 1, n, n]``.
    """
    counts = mask.sum(axis=1, dtype=np.int32)
    indices = np.argsort(~mask, axis=1, kind="stable").astype(np.int32)
    return torch.from_numpy(counts).to(device)[None, None], torch.from_numpy(indices).to(device)[
        None, None
    ]
